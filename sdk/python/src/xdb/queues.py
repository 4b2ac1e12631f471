"""Queues of messages: local queues of one process, and global queues that all processes of the database share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

from .codec import encode
from .live import Live, Message
from .waits import Leaf, Wait, amount

T = TypeVar("T")


class BoundQueue(Generic[T]):
    """A local queue within a handler, for instance `self.verified`: its received messages, and `publish`."""

    def __init__(self, queue: Queue[T], live: Live) -> None:
        self._queue, self._live = queue, live

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._queue.name

    @property
    def messages(self) -> list[T]:
        """All messages that the wait of this step has consumed from the queue."""
        return self._live.messages(self._queue.name, False, self._queue.message_type)

    @property
    def received(self) -> bool:
        """Whether there are messages."""
        return bool(self.messages)

    @property
    def message(self) -> T:
        """The first message. Raises `LookupError` if there is none."""
        return _first(self.messages, self.name)

    def publish(self, message: T, *, message_id: str | None = None) -> None:
        """Publishes a message to the queue of this process, with the answer. A message whose `message_id` was used before is ignored.

        Raises `CodecError` if the message does not fit.
        """
        payload = encode(message, self._queue.message_type, self.name)
        sent = {"queueName": self.name, "messageId": message_id, "payload": payload}
        self._live.publish(self._live.local_messages, sent)

    def take(
        self, count: int = 1, *, at_least: int | None = None, at_most: int | None = None, id: str | None = None
    ) -> Wait:
        """Like `Queue.take`, for a function of `wait=`."""
        return self._queue.take(count, at_least=at_least, at_most=at_most, id=id)


class Queue(Generic[T]):
    """A local queue, declared in a process class: `verified = xdb.Queue[str]()`. The type is that of its messages.

    `name` is its name in the definition. Default: that of the attribute.
    """

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
        """A wait for `count` messages, or for `at_least` messages of which it consumes up to `at_most`.

        Each of the two defaults to the other. `id` names the command in `xdb.results()`; default the queue's name. Raises `WaitError`.
        """
        return Leaf("local", amount(count, at_least, at_most), self, id)


class BoundGlobalQueue(Generic[T]):
    """A global queue within a handler: its received messages, and `publish`."""

    def __init__(self, queue: GlobalQueue[T], live: Live) -> None:
        self._queue, self._live = queue, live

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._queue.name

    @property
    def messages(self) -> list[Message[T]]:
        """All messages that the wait of this step has consumed from the queue."""
        return self._live.messages(self._queue.name, True, self._queue.message_type)

    @property
    def received(self) -> bool:
        """Whether there are messages."""
        return bool(self.messages)

    @property
    def message(self) -> Message[T]:
        """The first message. Raises `LookupError` if there is none."""
        return _first(self.messages, self.name)

    def publish(
        self, message: T, *, key: str | None = None, message_id: str | None = None, ttl: float | timedelta | None = None
    ) -> None:
        """Publishes a message with the answer. It is kept until a step consumes it, or for `ttl` seconds if that is given.

        If the publishing role has used the `message_id` in this queue, the message is ignored. Raises `CodecError` if the message does not
        fit, and `ValueError` for a `ttl` that is not positive.
        """
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        if seconds is not None and seconds <= 0:
            raise ValueError(f"ttl={ttl!r} of a message for {self.name} is not positive: give more, or None to keep the message")
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
        """Like `GlobalQueue.take`, for a function of `wait=`."""
        return self._queue.take(count, at_least=at_least, at_most=at_most, key=key, id=id)


class GlobalQueue(Generic[T]):
    """A global queue, declared in a process class by its name: `prices = xdb.GlobalQueue[Decimal]("prices")`."""

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
        """A wait like that of `Queue.take`. With `key`, only for messages that were published with this key."""
        fields: dict[str, Any] = dict(amount(count, at_least, at_most))
        if key is not None:
            fields["key"] = key
        return Leaf("global", fields, self, id)


def _first(messages: list[T], name: str) -> T:
    if not messages:
        raise LookupError(f"no message of {name} was received: check {name}.received first")
    return messages[0]
