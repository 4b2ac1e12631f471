"""A fan-out: a thread for each of two hundred pictures, and a thread that waits for all of them.

    python -m xdb serve fan_out:worker
"""

from __future__ import annotations

from dataclasses import dataclass

import xdb


def make_thumbnail(picture: str) -> int:
    """Returns the size of the thumbnail in bytes."""
    return 1000 + len(picture)


@dataclass
class Album:
    pictures: list[str]


@dataclass
class Made:
    picture: str
    size: int


@dataclass
class Summary:
    thumbnails: int
    bytes: int


class Thumbnails(xdb.Process):
    expected: int = 0
    made = xdb.Queue[Made]()

    @xdb.state(start=True)
    def begin(self, album: Album) -> xdb.Decision:
        self.expected = len(album.pictures)
        return sum((self.make(picture) for picture in album.pictures), self.collect())

    @xdb.state(load=(), retry=xdb.Retry(attempts=10))
    def make(self, picture: str) -> xdb.Decision:
        self.made.publish(Made(picture, make_thumbnail(picture)))
        return xdb.end_thread()

    @xdb.state(wait=lambda self: self.made.take(self.expected))
    def collect(self) -> xdb.Decision:
        return xdb.complete(Summary(len(self.made.messages), sum(made.size for made in self.made.messages)))


worker = xdb.Worker(Thumbnails)
