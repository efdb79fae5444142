"""The files that workers on Ray share: an actor beside the comparing process has them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from studies.shared_files import FolderFiles


class Board:
    """The files that workers share, in the output folder, with locks that end with their workers."""

    def __init__(self, out: Path) -> None:
        self._files = FolderFiles(out)
        self._owners: dict[str, str] = {}
        self._changed = asyncio.Condition()

    async def has_authentication(self) -> bool:
        """Whether this node belongs to a cluster with token authentication."""
        return os.environ.get("RAY_AUTH_MODE") == "token"

    async def read(self, name: str) -> bytes | None:
        return self._files.read(name)

    async def write(self, name: str, content: bytes) -> None:
        self._files.write(name, content)

    # An actor runs coroutines side by side, so that a waiting worker blocks nobody.
    async def acquire(self, name: str, owner: str, *, wait: bool) -> bool:
        """Lock a name for a worker; without `wait` return False if another worker has it."""
        async with self._changed:
            if name in self._owners and not wait:
                return False
            await self._changed.wait_for(lambda: name not in self._owners)
            self._owners[name] = owner
            return True

    async def release(self, name: str) -> None:
        async with self._changed:
            self._owners.pop(name, None)
            self._changed.notify_all()

    async def forget(self, owner: str) -> None:
        """Release all locks of a worker that ended, and of the silo workers that it started."""
        async with self._changed:
            self._owners = {
                name: holder
                for name, holder in self._owners.items()
                # Silo workers are named below the worker that started them.
                if holder != owner and not holder.startswith(f"{owner}.")
            }
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class BoardFiles:
    """A worker's door to the board."""

    board: Any
    owner: str

    def read(self, name: str) -> bytes | None:
        content: bytes | None = ray.get(self.board.read.remote(name))
        return content

    def write(self, name: str, content: bytes) -> None:
        ray.get(self.board.write.remote(name, content))

    @contextmanager
    def locked(self, name: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        if not ray.get(self.board.acquire.remote(name, self.owner, wait=False)):
            if waiting is not None:
                waiting()
            ray.get(self.board.acquire.remote(name, self.owner, wait=True))
        try:
            yield
        finally:
            ray.get(self.board.release.remote(name))
