"""Files that the workers of a comparison share: searched learning rates and alignment packs."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from client_agent.storage.files import write_durably


class SharedFiles(Protocol):
    """Named files with a lock for each; a lock ends with the worker that holds it."""

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, content: bytes) -> None: ...

    def locked(self, name: str, waiting: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Lock a name for the duration of a block; `waiting` is called if another worker holds the lock."""
        ...


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """Shared files in a folder of this machine, locked by `flock`."""

    folder: Path

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, content)

    @contextmanager
    def locked(self, name: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        file = self.folder / f"{name}.lock"
        file.parent.mkdir(parents=True, exist_ok=True)
        # A file beside the content, which a rename replaces together with its lock.
        with file.open("w") as lock:
            try:
                # At first without waiting, so that the caller can say for what it waits.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is not None:
                    waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
