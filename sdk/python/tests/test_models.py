"""Models of pydantic and msgspec, and other classes that check their values themselves."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Optional
from uuid import UUID

import pytest
from support import post

import xdb
from xdb.codec import CodecError, decode, dumps, encode, loads

pydantic = pytest.importorskip("pydantic")
msgspec = pytest.importorskip("msgspec")

LONG = "12.30000000000000000000000000000000001"


class Plain(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    n: int
    s: str = ""
    f: float = 0
    raw: bytes = b""
    other: Any = None


class StrictPart(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    at: datetime = pydantic.Field(strict=True)


class Strict(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    model_config = pydantic.ConfigDict(strict=True)
    n: int
    at: datetime
    price: Decimal
    id: UUID
    pair: tuple[int, int]
    tags: set[str]
    part: StrictPart


class Struct(msgspec.Struct):  # type: ignore[misc, name-defined]
    n: int
    s: str = ""
    other: Any = None


@dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n is below zero")


@pydantic.dataclasses.dataclass
class Small:
    n: int = pydantic.Field(le=9)


MOMENT = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
STRICT: dict[str, Any] = {
    "n": 1,
    "at": MOMENT,
    "price": Decimal("1.50"),
    "id": UUID(int=3),
    "pair": (1, 2),
    "tags": {"a"},
    "part": StrictPart(at=MOMENT),
}


def test_a_strict_model_is_read_as_it_was_written() -> None:
    value = Strict(**STRICT)
    raw: Any = loads(dumps(encode(value, Strict)))
    assert decode(raw, Strict) == value
    # The value of a numeric column keeps its digits.
    number: Any = loads(LONG)
    assert decode({**raw, "price": number}, Strict).price == Decimal(LONG)
    with pytest.raises(CodecError, match="valid integer"):
        decode({**raw, "n": "1"}, Strict)


def changed(value: Any, n: Any) -> Any:
    value.n = n
    return value


@pytest.mark.parametrize(
    "value, annotation, message",
    [
        (changed(Plain(n=1), "many"), Plain, "Plain"),
        (Struct("many"), Struct, "Struct"),
        (changed(Positive(1), -1), Positive, "not a Positive: n is below zero"),
        (changed(Small(1), 10), Small, "Small"),
        ([Struct(1), Struct(None)], list[Struct], r"at\[1\].*Struct"),
    ],
    ids=["pydantic", "msgspec", "post_init", "pydantic's dataclass", "inside"],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_value_that_could_not_be_read_again_is_not_written(value: Any, annotation: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message) as raised:
        encode(value, annotation, "at")
    assert raised.value.path.startswith("at")


@pytest.mark.parametrize(
    "value, message",
    [
        (Plain(n=1, s="a\0b"), r"at\['s'\]: the text has the character \\0"),
        (Plain(n=1, s="\ud800"), r"at\['s'\]: the text has half of a surrogate pair"),
        (Plain(n=1, raw=b"\xff"), "at: this Plain can't become JSON: 'utf-8' codec can't decode"),
        (Plain(n=1, other=object()), "at: this Plain can't become JSON: Unable to serialize"),
        (Struct(1, "a\0b"), r"at\['s'\]: the text has the character \\0"),
        (Struct(1, "\ud800"), r"at\['s'\]: the text has half of a surrogate pair"),
        (Struct(1, other=object()), "at: this Struct can't become JSON: Encoding objects of type object"),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("typed", [True, False])
def test_a_value_that_the_server_could_not_store_is_refused_with_its_place(value: Any, message: str, typed: bool) -> None:
    with pytest.raises(CodecError, match=message):
        encode(value, type(value) if typed else Any, "at")


class Card(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    number: int
    holder: str
    parts: list[Small] = []


@pytest.mark.parametrize(
    "raw, cls, message",
    [
        ({"number": "secret", "holder": "Ada"}, Card, "P.card.number: does not fit Card: Input should be a valid integer"),
        ({"number": 1, "holder": "Ada", "parts": [{"n": 1}, {"n": 77}]}, Card, r"P.card.parts\[1\].n: does not fit Card: Input"),
        ({"number": "secret"}, Card, "P.card.number: does not fit Card: Input should be .*; holder: Field required$"),
        ({"n": 77}, Small, r"P.card.n: does not fit Small: Input should be less than or equal to 9$"),
        ({"n": "x"}, Struct, r"P.card: not a Struct: Expected `int`, got `str` - at `\$.n`"),
        ({"n": -1}, Positive, "P.card: not a Positive: n is below zero"),
    ],
    ids=["field", "inside", "fields", "pydantic's dataclass", "msgspec", "post_init"],
)
@pytest.mark.parametrize("optional", [False, True])
def test_why_a_class_refuses_a_value(raw: Any, cls: Any, message: str, optional: bool) -> None:
    with pytest.raises(CodecError, match=message) as raised:
        decode(raw, Optional[cls] if optional else cls, "P.card")
    # That text goes to the log and to the database.
    text = "".join(traceback.format_exception(raised.value))
    assert "secret" not in text and "77" not in text


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(CodecError, match=r"^P.card: str 'x' is not Optional\[test_models.Struct\]$"):
        encode("x", Optional[Struct], "P.card")


def test_a_float_that_is_no_number_is_written_as_postgres_does() -> None:
    raw: Any = encode(Plain(n=1, f=float("inf")), Plain)
    assert raw["f"] == "Infinity" and decode(raw, Plain).f == float("inf")


class FromElsewhere(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    """Read from what another program writes, and written under another name."""

    names: list[str] = pydantic.Field(validation_alias="theNames")


class Reader(xdb.Process):
    kept: Optional[FromElsewhere] = None
    plain: Optional[Plain] = None
    struct: Optional[Struct] = None

    @xdb.state
    def reads(self) -> xdb.Decision:
        assert self.kept is not None
        return xdb.complete(self.kept)

    @xdb.state
    def changes(self) -> xdb.Decision:
        assert self.kept is not None
        self.kept.names.append("c")
        return xdb.complete()

    @xdb.state
    def changes_in_place(self) -> xdb.Decision:
        assert self.plain is not None
        self.plain.n = "many"
        return xdb.complete()

    @xdb.state
    def assigns(self) -> xdb.Decision:
        self.struct = Struct("many")
        return xdb.complete()


WORKER = xdb.Worker(Reader)


def test_a_value_that_can_be_read_but_not_written_may_be_read() -> None:
    local = {"kept": {"theNames": ["a", "b"]}}
    status, answer = post(WORKER, "Reader", "reads", local=local)
    close = {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": {"names": ["a", "b"]}}
    assert (status, answer) == (200, {"stateDecision": {"threadCloseDecision": close}})
    status, answer = post(WORKER, "Reader", "changes", local=local)
    assert (status, answer["errorType"]) == (500, "CodecError")
    assert answer["detail"] == "Reader.kept.theNames: does not fit FromElsewhere: Field required"


def test_the_call_that_would_have_written_it_fails() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status, answer = post(WORKER, "Reader", "changes_in_place", local={"plain": {"n": 1}})
    assert (status, answer["errorType"]) == (500, "CodecError") and answer["detail"].startswith("Reader.plain")
    status, answer = post(WORKER, "Reader", "assigns")
    assert (status, answer["errorType"]) == (500, "CodecError") and answer["detail"].startswith("Reader.struct")
