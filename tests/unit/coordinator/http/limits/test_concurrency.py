"""Keyed locks: one holder at a time, in order of arrival, and no memory of finished holders."""

from __future__ import annotations

import anyio
import pytest

from coordinator.errors import RateLimited
from coordinator.http.limits import concurrency
from coordinator.http.limits.concurrency import KeyedLock


def test_a_keyed_lock_serialises_only_equal_keys() -> None:
    turns_taken: list[str] = []

    async def upload(turns: KeyedLock, name: str, say: str) -> None:
        async with turns.hold(name):
            turns_taken.append(say)
            await anyio.sleep(0.01)
            turns_taken.append(say)

    async def run() -> KeyedLock:
        turns = KeyedLock()
        async with anyio.create_task_group() as tasks:
            for name, say in (("a", "1"), ("a", "2"), ("b", "3")):
                tasks.start_soon(upload, turns, name, say)
        return turns

    turns = anyio.run(run)
    assert [say for say in turns_taken if say != "3"] == ["1", "1", "2", "2"]
    assert turns_taken[1] == "3"
    assert not turns._locks


def test_a_lock_waiter_is_refused_after_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_PATIENCE_SECONDS", 0.01)

    async def second(turns: KeyedLock) -> None:
        with pytest.raises(RateLimited, match="in progress"):
            await turns.hold("a").__aenter__()

    async def run() -> KeyedLock:
        turns = KeyedLock()
        async with turns.hold("a"), anyio.create_task_group() as tasks:
            tasks.start_soon(second, turns)
        async with turns.hold("a"):
            pass
        return turns

    assert not anyio.run(run)._locks
