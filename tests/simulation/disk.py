"""The agents' disks: what was not synced may be gone after a loss of power. Files themselves are real."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


class Disks:
    """All folders of a schedule, below one that is in memory."""

    def __init__(self, folder: Path, point: Callable[[str], None]) -> None:
        self.folder = folder
        self._point = point
        self._synced: set[int] = set()
        self._unsettled: dict[str, set[str]] = {}  # names that a folder got since it was last synced

    def clear(self) -> None:
        """Begin anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._synced.clear()
        self._unsettled.clear()

    def keep(self, file: Path, content: bytes) -> None:
        """Put a file down for good."""
        file.write_bytes(content)
        self._synced.add(file.stat().st_ino)

    def lose_power(self, folder: Path) -> list[str]:
        """Take away what a sudden loss of power may: bytes and names that were never synced."""
        lost = []
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            unsettled = file.name in self._unsettled.get(str(file.parent), ())
            if unsettled or file.stat().st_ino not in self._synced:
                file.unlink()
                lost.append(file.name)
        return lost

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Watch what is synced and renamed."""
        replace = os.replace

        def fsync(handle: int) -> None:
            self._point("fsync")
            path = os.readlink(f"/proc/self/fd/{handle}")
            if os.path.isdir(path):
                self._unsettled.pop(path, None)
            else:
                self._synced.add(os.fstat(handle).st_ino)

        def replaced(source: str, target: str | Path) -> None:
            self._point("replace")
            replace(source, target)
            parent, name = os.path.split(str(target))
            self._unsettled.setdefault(parent, set()).add(name)

        with patch.object(os, "fsync", fsync), patch.object(os, "replace", replaced):
            yield
