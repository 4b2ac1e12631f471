"""The signatures of the calling side that `app.py` uses, as far as types of RPCs, queues and rows go through them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar, overload

import xdb

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")


class Client:
    """Calls nothing."""

    def start(
        self,
        process: type[xdb.Process],
        process_id: str,
        input: object = None,
        *,
        rows: Sequence[xdb.RowStart] = (),
        conn: Any = None,
    ) -> str:
        return ""

    @overload
    def rpc(
        self,
        rpc: xdb.Rpc[None, O],
        process_id: str,
        *,
        idempotency_key: str | None = ...,
        timeout: timedelta | None = ...,
        conn: Any = ...,
    ) -> O: ...
    @overload
    def rpc(
        self,
        rpc: xdb.Rpc[I, O],
        process_id: str,
        input: I,
        *,
        idempotency_key: str | None = ...,
        timeout: timedelta | None = ...,
        conn: Any = ...,
    ) -> O: ...
    def rpc(self, rpc: Any, process_id: str, input: Any = None, **options: Any) -> Any: ...

    def publish(self, queue: xdb.Queue[T], process_id: str, message: T, *, conn: Any = None) -> None: ...
