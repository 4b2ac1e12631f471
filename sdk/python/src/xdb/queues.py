"""Queues of messages: of one process, and global ones that all processes of the database share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

from .codec import encode
from .live import Live, Message
from .waits import Leaf, Wait, amount

T = TypeVar("T")


class BoundQueue(Generic[T]):
    """A queue within a call: what was received of it, and a way to publish."""

    def __init__(self, queue: Queue[T], live: Live) -> None:
        self._queue, self._live = queue, live

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    @property
    def messages(self) -> list[T]:
        """All messages that the wait took from it."""
        return self._live.messages(self._queue.name, False, self._queue.message_type)

    @property
    def received(self) -> bool:
        """Whether there are any."""
        return bool(self.messages)

    @property
    def message(self) -> T:
        """The first one."""
        return _first(self.messages, self.name)

    def publish(self, message: T, *, message_id: str | None = None) -> None:
        """Sends a message to this process' queue, with the answer. A `message_id` that was used before is ignored."""
        payload = encode(message, self._queue.message_type, self.name)
        sent = {"queueName": self.name, "messageId": message_id, "payload": payload}
        self._live.publish(self._live.local_messages, sent)

    def take(
        self, count: int = 1, *, at_least: int | None = None, at_most: int | None = None, id: str | None = None
    ) -> Wait:
        """As that of the queue, for a `wait=` that is a function."""
        return self._queue.take(count, at_least=at_least, at_most=at_most, id=id)


class Queue(Generic[T]):
    """A queue of one process, declared in its class: `verified = xdb.Queue[str]()`."""

    name: str
    message_type: Any

    def __init__(self, name: str | None = None) -> None:
        self.name, self.message_type = name or "", Any

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    @overload
    def __get__(self, obj: None, owner: Any) -> Queue[T]: ...
    @overload
    def __get__(self, obj: object, owner: Any) -> BoundQueue[T]: ...
    def __get__(self, obj: Any, owner: Any) -> Queue[T] | BoundQueue[T]:
        return self if obj is None else BoundQueue(self, obj._live)

    def take(
        self, count: int = 1, *, at_least: int | None = None, at_most: int | None = None, id: str | None = None
    ) -> Wait:
        """Waits for so many messages; with `at_most` it takes as many more as are there."""
        return Leaf("local", amount(count, at_least, at_most), self, id)


class BoundGlobalQueue(Generic[T]):
    """A global queue within a call. Its messages have a key besides their payload."""

    def __init__(self, queue: GlobalQueue[T], live: Live) -> None:
        self._queue, self._live = queue, live

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    @property
    def messages(self) -> list[Message[T]]:
        """All messages that the wait took from it."""
        return self._live.messages(self._queue.name, True, self._queue.message_type)

    @property
    def received(self) -> bool:
        """Whether there are any."""
        return bool(self.messages)

    @property
    def message(self) -> Message[T]:
        """The first one."""
        return _first(self.messages, self.name)

    def publish(
        self, message: T, *, key: str | None = None, message_id: str | None = None, ttl: float | timedelta | None = None
    ) -> None:
        """Sends a message, with the answer. It is kept until a state takes it, or until its `ttl` is over, in seconds."""
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        if seconds is not None and seconds <= 0:
            raise ValueError(f"a message for {self.name} needs a ttl above zero, or none")
        sent = {
            "queueName": self.name,
            "key": key,
            "messageId": message_id,
            "payload": encode(message, self._queue.message_type, self.name),
            "ttlSeconds": seconds,
        }
        self._live.publish(self._live.global_messages, sent)

    def take(
        self,
        count: int = 1,
        *,
        at_least: int | None = None,
        at_most: int | None = None,
        key: str | None = None,
        id: str | None = None,
    ) -> Wait:
        """As that of the queue, for a `wait=` that is a function."""
        return self._queue.take(count, at_least=at_least, at_most=at_most, key=key, id=id)


class GlobalQueue(Generic[T]):
    """A queue of the whole database, by its name: `prices = xdb.GlobalQueue[Decimal]("prices")`."""

    name: str
    message_type: Any

    def __init__(self, name: str) -> None:
        self.name, self.message_type = name, Any

    @overload
    def __get__(self, obj: None, owner: Any) -> GlobalQueue[T]: ...
    @overload
    def __get__(self, obj: object, owner: Any) -> BoundGlobalQueue[T]: ...
    def __get__(self, obj: Any, owner: Any) -> GlobalQueue[T] | BoundGlobalQueue[T]:
        return self if obj is None else BoundGlobalQueue(self, obj._live)

    def take(
        self,
        count: int = 1,
        *,
        at_least: int | None = None,
        at_most: int | None = None,
        key: str | None = None,
        id: str | None = None,
    ) -> Wait:
        """Waits for so many messages, with this key if there is one."""
        fields: dict[str, Any] = dict(amount(count, at_least, at_most))
        if key is not None:
            fields["key"] = key
        return Leaf("global", fields, self, id)


def _first(messages: list[T], name: str) -> T:
    if not messages:
        raise LookupError(f"no message of {name} was received: ask {name}.received first")
    return messages[0]
