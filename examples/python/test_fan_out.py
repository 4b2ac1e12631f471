from __future__ import annotations

import threading

import fan_out
import pytest
from fan_out import Album, Thumbnails

from xdb.testing.pytest_plugin import Database

PICTURES = [f"{number:03}.jpg" for number in range(200)]


def test_two_hundred(xdb_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: set[str] = set()
    guard = threading.Lock()

    def make_thumbnail(picture: str) -> int:
        with guard:
            if picture.endswith("7.jpg") and picture not in failed:
                failed.add(picture)
                raise OSError("the disk is busy")
        return 10

    monkeypatch.setattr(fan_out, "make_thumbnail", make_thumbnail)
    xdb_db.serve(Thumbnails)
    xdb_db.client.start(Thumbnails, "album", Album(PICTURES))
    outcome = xdb_db.client.wait(Thumbnails, "album", timeout=60)
    assert (outcome.status, outcome.result) == ("COMPLETED", {"thumbnails": 200, "bytes": 2000})
    assert len(failed) == 20
