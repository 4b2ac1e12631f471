"""What is written is read back as it was, or refused with its place when it is written."""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Optional, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from support import post

import xdb
from xdb.codec import CodecError, decode, dumps, encode, loads


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Hiding(pydantic.BaseModel):
    name: str
    note: str = pydantic.Field(default="none", exclude=True)


class Adding(pydantic.BaseModel):
    """Reads another price than it writes."""

    price: int

    @pydantic.field_validator("price")
    @classmethod
    def with_tax(cls, price: int) -> int:
        return price + 1


class Animal(pydantic.BaseModel):
    name: str


class Cat(Animal):
    lives: int = 9


class Owner(pydantic.BaseModel):
    animal: Animal


class Plain(msgspec.Struct):
    name: str


class Fancy(Plain):
    colour: str = "red"


@dataclasses.dataclass
class Pet:
    name: str


@dataclasses.dataclass
class Dog(Pet):
    breed: str = "?"


@dataclasses.dataclass
class Counting:
    start: int
    count: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Lower:
    name: str
    seen: list[str] = dataclasses.field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        self.name = self.name.lower()


@dataclasses.dataclass
class Loose:
    anything: dict[str, Any]

    def __post_init__(self) -> None:
        self.anything = dict(self.anything)


class Point(NamedTuple):
    x: int


class Named(Point):
    pass


class Colour(enum.Enum):
    RED = "red"


class UserText(str):
    pass


class Price(Decimal):
    pass


class Nanoseconds(timedelta):
    """As pandas has them: more than microseconds, which its JSON does not have."""

    nanoseconds = 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nanoseconds) and super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()


class Nanotime(datetime):
    nanoseconds = 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nanotime) and super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()


def changed(value: Any, **fields: Any) -> Any:
    for name, field in fields.items():
        setattr(value, name, field)
    return value


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def around_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@dataclasses.dataclass
class Failing:
    name: str

    def __getattribute__(self, name: str) -> Any:
        if name == "name":
            raise ZeroDivisionError("no name")
        return super().__getattribute__(name)


REFUSED: list[tuple[Any, Any, str]] = [
    (Login(user="a", password=pydantic.SecretStr("hunter2")), Login, "at.password: this would be read back"),
    ([Login(user="a", password=pydantic.SecretStr("hunter2"))], list[Login], "at[0].password: "),
    (Hiding(name="n", note="lost"), Hiding, "at.note: "),
    (Adding(price=1), Adding, "at.price: "),
    (Cat(name="c"), Animal, "at: Cat "),
    (Owner(animal=Cat(name="c")), Owner, "at.animal: "),
    (Fancy("f"), Plain, "at: Fancy "),
    (Dog("Rex", "collie"), Pet, "at: Dog "),
    ({"pet": Dog("Rex")}, dict[str, Pet], "at['pet']: Dog "),
    (Named(1), Point, "at: Named "),
    (changed(Counting(1), count=5), Counting, "at.count: "),
    (changed(Lower("a"), name="A"), Lower, "at['name']: "),
    (Dog("Rex", "collie"), Union[Pet, Dog], "at: this Dog would be read back as Pet, which comes earlier in"),
    (Pet("Rex"), Union[Dog, Pet], "at: this Pet would be read back as Dog"),
    ("1.5", Union[Decimal, str], "at: this str would be read back as Decimal"),
    ("NaN", Union[float, str], "at: this str would be read back as float"),
    ("2026-07-01", Union[date, str], "at: this str would be read back as date"),
    (date(2026, 7, 1), Union[str, date], "at: this date would be read back as str"),
    ("\\x01", Optional[Union[bytes, str]], "at: this str would be read back as bytes"),
    (str(UUID(int=7)), Union[UUID, str], "at: this str would be read back as UUID"),
    ("P1D", Union[timedelta, str], "at: this str would be read back as timedelta"),
    ("red", Union[Colour, str], "at: this str would be read back as Colour"),
    ({"a": "1.5"}, Mapping[str, Union[Decimal, str]], "at['a']: this str would be read back as Decimal"),
    ([Decimal(1)], Union[list[str], list[Decimal]], "at: this list would be read back as list[str]"),
    ((1, 2), Union[list[int], tuple[int, ...]], "at: this tuple would be read back as list[int]"),
    ([1, 2], Union[tuple[int, int], list[int]], "at: this list would be read back as tuple[int, int]"),
    (frozenset({1}), Union[set[int], frozenset[int]], "at: this frozenset would be read back as set[int]"),
    ({1}, Union[list[int], set[int]], "at: this set would be read back as list[int]"),
    ([(1, 2)], Union[list[list[int]], list[tuple[int, int]]], "at: this list would be read back as list[list[int]]"),
    ({"a": (1,)}, Union[dict[str, list[int]], dict[str, tuple[int]]], "at: this dict would be read back as dict[str, list[int]]"),
    ({1: "a"}, dict[Union[int, str], str], "at[1]: this key is a number that would be read back as a text"),
    ({(1, 2)}, set, "at: not a set: unhashable type"),
    (10**400, float, "at: this int can't become JSON: int too large to convert to float"),
    (2**53 + 1, float, "at: a float can't hold all digits of this int"),
    (10**5000, int, "at: this int can't become JSON: Exceeds the limit"),
    (10**5000, Decimal, "at: this int can't become JSON: Exceeds the limit"),
    ([10**5000], Any, "at[0]: this int can't become JSON: Exceeds the limit"),
    (Nanoseconds(seconds=1), timedelta, "at: this Nanoseconds would be read back as another timedelta"),
    (Nanotime(2026, 7, 1), datetime, "at: this Nanotime would be read back as another datetime"),
    (deep(2000), list, "at: the value is nested too deeply, or contains itself"),
    (around_itself(), Any, "at: the value is nested too deeply, or contains itself"),
    (Failing("n"), Failing, "at: this Failing can't be written: ZeroDivisionError: no name"),
]


@pytest.mark.parametrize("value, annotation, message", REFUSED, ids=range(len(REFUSED)))
def test_a_value_that_would_be_read_back_differently_is_refused(value: Any, annotation: Any, message: str) -> None:
    with pytest.raises(CodecError) as raised:
        encode(value, annotation, "at")
    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)


BERLIN = ZoneInfo("Europe/Berlin")

TAKEN: list[tuple[Any, Any]] = [
    (Login(user="a", password=pydantic.SecretStr("**********")), Login),
    (Hiding(name="n"), Hiding),
    (Owner(animal=Animal(name="c")), Owner),
    (Cat(name="c"), Union[Cat, Animal]),
    (Animal(name="c"), Optional[Animal]),
    (None, Optional[Animal]),
    (Dog("Rex", "collie"), Union[Dog, Pet]),
    (Counting(1), Counting),
    (changed(Lower("a"), seen=["b"]), Lower),
    (Decimal("1.5"), Union[Decimal, str]),
    ("abc", Union[Decimal, str]),
    (math.nan, Union[float, str]),
    ("red", Union[str, Colour]),
    ("red", Union[Literal["red"], str]),
    (2.0, Union[int, float]),
    (True, Union[int, bool]),
    ((1, 2), Union[tuple[int, ...], list[int]]),
    ((1, "a"), Union[list[int], tuple[int, str]]),
    ([1, 2], Union[list[int], Sequence[int]]),
    ([], Union[list[int], list[str]]),
    ({"a": "b"}, dict[Union[int, str], str]),
    ({1: "b"}, dict[int, str]),
    ({1, 2}, set),
    ({UserText("a")}, set),
    (Decimal("sNaN"), Decimal),
    (Decimal("NaN"), Union[int, Decimal]),
    (Price("1.5"), Decimal),
    (2**53, float),
    (1e300, float),
    (2**900, float),
    (10**4000, int),
    (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), datetime),
    (datetime(1, 1, 1, tzinfo=timezone.utc), datetime),
    (deep(100), list),
]


@pytest.mark.parametrize("value, annotation", TAKEN, ids=range(len(TAKEN)))
def test_a_value_that_is_read_back_unchanged_is_written(value: Any, annotation: Any) -> None:
    back = decode(loads(dumps(encode(value, annotation))), annotation)
    assert repr(back) == repr(value) or back == value or back.isoformat() == value.isoformat()


@pytest.mark.parametrize(
    "value, annotation, back",
    [
        ({"at": Decimal(1)}, dict, {"at": "1"}),
        ([date(2026, 7, 1), (1,)], list, ["2026-07-01", [1]]),
        ({Decimal(1)}, set, {"1"}),
        (Lower("a", seen=["b"]), Any, {"name": "a", "seen": ["b"]}),
        (Loose({"a": Decimal(1)}), Loose, Loose({"a": "1"})),
    ],
    ids=range(5),
)
def test_without_an_annotation_a_value_is_read_as_json(value: Any, annotation: Any, back: Any) -> None:
    assert decode(loads(dumps(encode(value, annotation))), annotation) == back


def test_members_with_one_json_are_refused_by_the_class() -> None:
    class Twice(enum.Enum):
        NUMBER = Decimal(1)
        TEXT = "1"

    with pytest.raises(CodecError, match=r"<Twice.NUMBER: .*> and <Twice.TEXT: '1'> have the same JSON, '1'"):
        encode(Twice.TEXT, Twice)
    with pytest.raises(xdb.DefinitionError, match="have the same JSON"):

        class Process(xdb.Process):
            which: Twice | None


def test_a_read_fails_with_the_codecs_own_error() -> None:
    @dataclasses.dataclass
    class Strict:
        name: str

        def __post_init__(self) -> None:
            raise KeyError("no such name")

    with pytest.raises(CodecError, match=r"at\[0\]: not a .*Strict: 'no such name'"):
        decode([{"name": "n"}], list[Strict], "at")
    with pytest.raises(CodecError, match="nested too deeply"):
        loads("[" * 100_000 + "]" * 100_000)
    with pytest.raises(CodecError, match="nested too deeply"):
        dumps(deep(sys.getrecursionlimit() * 100))


def test_an_attribute_that_can_only_be_read_is_read_and_not_written_again() -> None:
    """A value that another program has written, which this one would write otherwise."""

    class Reads(xdb.Process):
        adding: Adding | None

        @xdb.state(start=True)
        def only(self) -> xdb.Decision:
            assert self.adding is not None
            return xdb.complete(self.adding.price)

    status, answer = post(xdb.Worker(Reads), "Reads", "only", local={"adding": {"price": 1}})
    assert (status, answer) == (200, {"stateDecision": xdb.complete(2).body})
