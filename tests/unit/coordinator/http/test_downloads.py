"""Pieces of downloads: whole rows while memory is free, and until the reader pauses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from coordinator.db.chunks import CHUNK_BYTES
from coordinator.db.engine import Database
from coordinator.http import downloads
from coordinator.http.limits.memory_budget import MemoryBudget
from coordinator.storage import payloads

BODY = os.urandom(2 * CHUNK_BYTES)


@pytest.fixture
def payload_id(database: Database) -> int:
    with database.write() as session:
        return payloads.store_bytes(session, BODY)[0]


def _stream(database: Database, payload_id: int) -> AsyncIterator[bytes]:
    return downloads.stream(database, payload_id, 0, len(BODY), lambda _: None)


def test_downloads_get_whole_rows_within_a_budget(
    database: Database, payload_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_WHOLE_ROWS", MemoryBudget(CHUNK_BYTES, share_bytes=CHUNK_BYTES))
    monkeypatch.setattr(downloads, "_FAST_SECONDS", 60.0)

    async def read() -> tuple[list[bytes], list[bytes], list[bytes]]:
        first = _stream(database, payload_id)
        beginning = await anext(first)
        beside = [piece async for piece in _stream(database, payload_id)]
        whole = [beginning, *[piece async for piece in first]]
        return whole, beside, [piece async for piece in _stream(database, payload_id)]

    whole, beside, later = asyncio.run(read())
    assert [len(piece) for piece in whole] == [CHUNK_BYTES] * 2
    assert {len(piece) for piece in beside} == {payloads.SENT_BYTES}
    assert [len(piece) for piece in later] == [CHUNK_BYTES] * 2, "what was taken is given back"
    assert b"".join(whole) == b"".join(beside) == BODY


def test_readers_that_pause_lose_whole_rows(
    database: Database, payload_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_FAST_SECONDS", 0.0)

    async def read() -> list[int]:
        return [len(piece) async for piece in _stream(database, payload_id)]

    assert asyncio.run(read()) == [CHUNK_BYTES, *[payloads.SENT_BYTES] * (CHUNK_BYTES // payloads.SENT_BYTES)]
