"""The agents' disks, which may lose unsynced data at a power loss. The files are real."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from unittest.mock import patch


@dataclass(frozen=True)
class _Renamed:
    """A name that moved; `replaced` are the bytes that its target stood for, if it stood for any."""

    source: Path
    target: Path
    replaced: bytes | None


class Disks:
    """All folders of a schedule, below one that is in memory."""

    def __init__(self, folder: Path, point: Callable[[str], None]) -> None:
        self.folder = folder
        self._point = point
        self._synced: set[int] = set()
        self._unsettled: dict[str, list[_Renamed]] = {}  # in folders, since each was last synced

    def clear(self) -> None:
        """Delete all folders."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._synced.clear()
        self._unsettled.clear()

    def lose_power(self, folder: Path) -> list[str]:
        """Remove unsynced bytes and names, as a power failure may."""
        lost = []
        for parent in [str(folder), *(str(path) for path in sorted(folder.rglob("*")) if path.is_dir())]:
            for renamed in reversed(self._unsettled.pop(parent, [])):
                lost += self._undo(renamed)
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            if file.stat().st_ino not in self._synced:
                file.unlink()
                lost.append(file.name)
        return lost

    def _undo(self, renamed: _Renamed) -> list[str]:
        """Restore both names."""
        if renamed.target.exists():
            renamed.target.rename(renamed.source)
        if renamed.replaced is not None:
            renamed.target.write_bytes(renamed.replaced)
            self._synced.add(renamed.target.stat().st_ino)
        return [renamed.target.name]

    def _synced_bytes(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes() if path.stat().st_ino in self._synced else None
        except FileNotFoundError:
            return None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record synced and renamed files until the block ends."""
        replace = os.replace

        def fsync(handle: int) -> None:
            self._point("fsync")
            status = os.fstat(handle)
            if S_ISDIR(status.st_mode):
                self._unsettled.pop(os.readlink(f"/proc/self/fd/{handle}"), None)
            else:
                self._synced.add(status.st_ino)

        def replaced(source: str, target: str | Path) -> None:
            self._point("replace")
            path = Path(target)
            renamed = _Renamed(Path(source), path, self._synced_bytes(path))
            replace(source, target)
            self._unsettled.setdefault(str(path.parent), []).append(renamed)

        with patch.object(os, "fsync", fsync), patch.object(os, "replace", replaced):
            yield
