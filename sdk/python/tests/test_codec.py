from __future__ import annotations

import enum
import math
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict, Union
from uuid import UUID

import pytest

from xdb import codec
from xdb.codec import CodecError, decode, dumps, encode, loads


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Ratio(enum.Enum):
    HALF = 0.5


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


UserId = NewType("UserId", int)


@dataclass
class Item:
    sku: str
    price: Decimal
    amount: int = 1
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)
    parent: Optional[Tree] = None


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Options(TypedDict):
    name: str
    size: int


class Loose(TypedDict, total=False):
    name: str


MOMENT = datetime(2026, 7, 1, 12, 0, 0, 120000, tzinfo=timezone.utc)

# Value, annotation, JSON.
CASES: list[tuple[Any, Any, Any]] = [
    ("ü", str, "ü"),
    (3, int, 3),
    (2.5, float, 2.5),
    (3, float, 3),
    (math.inf, float, "Infinity"),
    (True, bool, True),
    (None, None, None),
    (Decimal("12.30"), Decimal, "12.30"),
    (MOMENT, datetime, "2026-07-01T12:00:00.120000+00:00"),
    (date(2026, 7, 1), date, "2026-07-01"),
    (time(8, 30), time, "08:30:00"),
    (timedelta(days=1, hours=2), timedelta, "P1DT7200S"),
    (timedelta(seconds=-1.5), timedelta, "PT-1.5S"),
    (timedelta(0), timedelta, "PT0S"),
    (UUID(int=7), UUID, "00000000-0000-0000-0000-000000000007"),
    (b"\x01\x02", bytes, "\\x0102"),
    (Color.RED, Color, "red"),
    (Level.HIGH, Level, 2),
    (Ratio.HALF, Ratio, 0.5),
    ("a", Literal["a", 1, None], "a"),
    (None, Literal["a", 1, None], None),
    (Item("s", Decimal("1.1"), 2, ["x"]), Item, {"sku": "s", "price": "1.1", "amount": 2, "tags": ["x"]}),
    (
        Tree(1, [Tree(2)]),
        Tree,
        {"value": 1, "children": [{"value": 2, "children": [], "parent": None}], "parent": None},
    ),
    (Point(1.5), Point, {"x": 1.5, "y": 0.0}),
    ({"name": "n", "size": 1}, Options, {"name": "n", "size": 1}),
    ({}, Loose, {}),
    ([1, 2], list[int], [1, 2]),
    ([1, 2], Sequence[int], [1, 2]),
    ((1, "a"), tuple[int, str], [1, "a"]),
    ((1, 2), tuple[int, ...], [1, 2]),
    ({"b", "a"}, set[str], ["a", "b"]),
    (frozenset({2, 1}), frozenset[int], [1, 2]),
    ({"a": Decimal(1)}, dict[str, Decimal], {"a": "1"}),
    ({1: "a"}, dict[int, str], {"1": "a"}),
    ({Color.RED: 1}, dict[Color, int], {"red": 1}),
    ({Level.HIGH: 1}, dict[Level, int], {"2": 1}),
    ({Mixed.ONE: 1, Mixed.TWO: 2}, dict[Mixed, int], {"1": 1, "two": 2}),
    ({UserId(1): "a"}, dict[UserId, str], {"1": "a"}),
    ({1: "a", "b": "c"}, dict[Literal[1, "b"], str], {"1": "a", "b": "c"}),
    ({-1: "a", Color.RED: "c"}, dict[Union[Color, Annotated[int, "a note"]], str], {"-1": "a", "red": "c"}),
    ({"a": 1}, Mapping[str, int], {"a": 1}),
    ({"a": [1, None]}, dict, {"a": [1, None]}),
    (None, Optional[int], None),
    (5, Optional[int], 5),
    (Decimal("1.5"), Union[int, Decimal, str], "1.5"),
    ([Item("s", Decimal(1))], Optional[list[Item]], [{"sku": "s", "price": "1", "amount": 1, "tags": []}]),
    (7, UserId, 7),
    (7, Annotated[int, {"unhashable": 1}], 7),
    ({"x": [1.5, True]}, Any, {"x": [1.5, True]}),
]


def name_of(each: Any) -> str:
    """The same in each process: the order of a set is not."""
    return codec.name_of(sorted(each) if isinstance(each, set) else each)[:40]


@pytest.mark.parametrize("value, annotation, raw", CASES, ids=name_of)
def test_values_go_there_and_back(value: Any, annotation: Any, raw: Any) -> None:
    assert encode(value, annotation) == raw
    assert decode(loads(dumps(raw)), annotation) == value


@pytest.mark.parametrize(
    "value, annotation, message",
    [
        ("x", int, "str 'x' is not int"),
        (True, int, "bool True is not int"),
        (1, bool, "int 1 is not bool"),
        (None, str, "null is not str"),
        (0.1, Decimal, "float 0.1 is not Decimal"),
        (MOMENT, date, "is not date"),
        ("red", Color, "str 'red' is not Color"),
        ("b", Literal["a"], "str 'b' is not Literal['a']"),
        ([1, "x"], list[int], "[1]: str 'x' is not int"),
        ("abc", Sequence[str], "is not collections.abc.Sequence[str]"),
        ((1,), tuple[int, int], "is not tuple[int, int]"),
        ({1.5: 1}, dict, "[1.5]: keys of JSON are texts"),
        (Item("s", Decimal(1), tags=[3]), Item, "tags[0]: int 3 is not str"),
        ({"name": "n"}, Options, "size: is missing"),
        ({"name": "n", "size": 1, "z": 1}, Options, "z: Options has no such key"),
        (object(), Any, "object can't become JSON"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_when_it_is_written(value: Any, annotation: Any, message: str) -> None:
    with pytest.raises(CodecError) as raised:
        encode(value, annotation)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "raw, annotation, message",
    [
        ("x", int, "at: str 'x' is not int"),
        (1.5, int, "expected a whole number"),
        (True, int, "bool True is not int"),
        ("x", float, "expected a number"),
        ("abc", Decimal, "at: str 'abc' is not Decimal"),
        ("2026-13-01", date, "is not date"),
        ("P1M", timedelta, "months and years have no fixed length"),
        ("1 day", timedelta, "expected an interval in ISO 8601"),
        ("0102", bytes, "as Postgres writes them"),
        ("green", Color, "whose values are 'red', 'blue'"),
        (True, Level, "is not Level"),
        ({"sku": "s", "price": "1", "tags": ["a", 2]}, Item, "at.tags[1]: int 2 is not str"),
        ({"price": "1"}, Item, "at.sku: is missing"),
        ({"a": {"b": 1}}, dict[str, dict[str, str]], "at['a']['b']: int 1 is not str"),
        ({"value": 1, "children": [{"value": "x"}]}, Optional[Tree], "at.children[0].value: str 'x' is not int"),
        ("x", Optional[int], "at: str 'x' is not Optional[int]"),
        ("P1M", Optional[timedelta], "at: str 'P1M' is not timedelta: months and years have no fixed length"),
    ],
)
def test_an_error_names_the_place_in_the_value(raw: Any, annotation: Any, message: str) -> None:
    with pytest.raises(CodecError) as raised:
        decode(raw, annotation, "at")
    assert message in str(raised.value)
    assert raised.value.path.startswith("at")


def test_numbers_keep_their_digits() -> None:
    digits = "0.1000000000000000055511151231257827021181583404541015625"
    raw = loads('{"n": %s, "m": 10, "f": %s}' % (digits, digits))
    assert decode(raw, dict[str, Decimal])["n"] == Decimal(digits)
    assert decode(raw, dict[str, float])["f"] == 0.1
    assert type(decode(raw, dict[str, float])["f"]) is float
    assert decode(loads("1.00"), int) == 1
    assert decode(loads("1" * 5000), Decimal) == Decimal("1" * 5000)
    assert dumps(encode(Decimal(digits), Decimal)) == f'"{digits}"'.encode()
    with pytest.raises(CodecError):
        decode(loads("1e999999999"), int)


@pytest.mark.parametrize(
    "raw, value",
    [
        ("2026-07-01T12:00:00+00", MOMENT.replace(microsecond=0)),
        ("2026-07-01T12:00:00.12Z", MOMENT),
        ("2026-07-01T14:00:00.1200001+02:00", MOMENT),
        ("2026-07-01T12:00:00", MOMENT.replace(microsecond=0, tzinfo=None)),
    ],
)
def test_times_are_read_as_postgres_and_other_programs_write_them(raw: str, value: datetime) -> None:
    assert decode(raw, datetime) == value


def test_invalid_json_is_refused() -> None:
    for text in ("NaN", "[1, -Infinity]", "{"):
        with pytest.raises(ValueError):
            loads(text)
    with pytest.raises(CodecError):
        dumps("\ud800")


@pytest.mark.parametrize("annotation", [object(), complex, typing.Callable[[], int], type(print)])
def test_a_type_without_json_is_refused(annotation: Any) -> None:
    with pytest.raises(CodecError, match="can't become JSON: use a dataclass"):
        codec.check(annotation)


@pytest.mark.parametrize(
    "key", [bool, float, None, Optional[int], Literal[1, True], Ratio, tuple[int, int], Point, Item], ids=codec.name_of
)
def test_a_type_that_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(CodecError, match=r"at\.of: .* can't be a key, because keys of JSON are texts"):
        encode({}, dict[key, int], "at.of")
    with pytest.raises(CodecError):
        codec.check(list[dict[key, int]])


@pytest.mark.parametrize("raw", ["--1", "1.0", "", "\u0663x", "x"])
def test_a_key_that_is_no_whole_number(raw: str) -> None:
    for annotation in (int, Level, Literal[1, 2]):
        with pytest.raises(CodecError):
            decode({raw: 1}, dict[annotation, int])


def test_pydantic_and_msgspec_are_known_without_an_import() -> None:
    pydantic, msgspec = pytest.importorskip("pydantic"), pytest.importorskip("msgspec")

    class Model(pydantic.BaseModel):
        price: Decimal
        tags: set[str] = set()

    struct = msgspec.defstruct("Struct", [("price", Decimal), ("at", Optional[date], None)])
    raw = loads('{"price": 1.100000000000000000000000000001}')
    exact = Decimal("1.100000000000000000000000000001")
    assert decode(raw, Model).price == exact
    assert decode(raw, struct).price == exact
    assert encode(Model(price=Decimal("1.20"), tags={"a"}), Model) == {"price": "1.20", "tags": ["a"]}
    assert encode(struct(Decimal("1.20"))) == {"price": "1.20", "at": None}
    assert encode([Model(price=Decimal(1))], list[Model]) == [{"price": "1", "tags": []}]
    for cls, message in ((Model, r"x\[0\].price: does not fit "), (struct, r"x\[0\]: not a ")):
        with pytest.raises(CodecError, match=message):
            decode([{"price": "no"}], list[cls], "x")


def test_a_union_is_tried_in_its_own_order() -> None:
    """Python takes `int | str` for equal to `str | int`: what was made for one is not that of the other."""
    assert decode("1.5", Union[Decimal, str]) == Decimal("1.5")
    assert decode("1.5", Union[str, Decimal]) == "1.5"
    assert decode(["1.5"], list[Union[str, Decimal]]) == ["1.5"]
    assert decode(["1.5"], list[Union[Decimal, str]]) == [Decimal("1.5")]


if sys.version_info >= (3, 11):

    class Partly(TypedDict):
        name: str
        size: typing.NotRequired[int]

    class Mostly(TypedDict, total=False):
        name: Annotated[typing.Required[str], "a note"]
        size: int

    @pytest.mark.parametrize("cls", [Partly, Mostly])
    def test_keys_that_may_be_missing(cls: Any) -> None:
        """Their annotations are texts here, of which Python's own `__required_keys__` knows nothing."""
        assert encode({"name": "n"}, cls) == decode({"name": "n"}, cls) == {"name": "n"}
        with pytest.raises(CodecError, match="name: is missing"):
            decode({"size": 1}, cls)


@pytest.mark.parametrize(
    "value, annotation, message",
    [
        ({"name": "a\0b"}, dict[str, str], r"at\['name'\]: the text has the character \\0, which jsonb can't hold"),
        (["a", "\ud800"], Any, r"at\[1\]: the text has half of a surrogate pair"),
        ({"\ud800": 1}, dict[str, int], "half of a surrogate pair"),
        ({1: "a", "1": "b"}, dict, "two keys have the same JSON, '1'"),
    ],
    ids=["zero", "surrogate", "key", "keys"],
)
def test_a_value_that_the_server_could_not_store_is_refused_with_its_place(value: Any, annotation: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        encode(value, annotation, "at")


def test_a_set_refuses_unhashable_items() -> None:
    with pytest.raises(CodecError, match=r"at: not a set\[list\[int\]\]: unhashable type"):
        decode([[1]], set[list[int]], "at")
