"""Files of intermediate results that can be computed again, bounded in size.

A file is named by a digest, and belongs to a space, such as one model. Files are written without fsync and
have a checksum, so a damaged one is computed again.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path

from client_agent.storage.files import make_folder

log = logging.getLogger(__name__)

"""The store's folder in an agent's folder."""

_CHECKSUM_BYTES = 4
_UNFINISHED = ".new-"
_ABANDONED_SECONDS = 3600.0


class PrefixStore:
    """Spaces of files below a folder, of at most `limit_bytes` together.

    When it is full, the spaces that were written longest ago are removed first; of the space in use nothing
    is, and further files are not stored. Processes may share a folder: each counts the files that it found
    and its own, so that together they may exceed the limit by what the others wrote meanwhile. A file that a
    killed process left unfinished is never read, and is deleted after an hour.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._space: Path | None = None
        self._used = 0
        self._is_full = False

    def use(self, space: str) -> None:
        """Read and write the files of a space from now on; its folder is made with the first file."""
        if self._space == self.folder / space:
            return
        self._space = self.folder / space
        # Sizes are counted once: a scan for each file would take longer than the write.
        for folder in self._spaces():
            _delete_abandoned(folder)
        self._used = sum(_bytes_in(folder) for folder in self._spaces())
        self._is_full = False

    def get(self, name: str, size: int) -> bytearray | None:
        """Return the content of a file of `size` bytes; None if it is missing or damaged."""
        if self._space is None:
            return None
        try:
            content = bytearray((self._space / name).read_bytes())
        except OSError:
            return None
        # The expected size is known, so everything behind it is the checksum.
        checksum = content[size:]
        del content[size:]
        return content if checksum == _checksum(content) and len(content) == size else None

    def put(self, name: str, content: bytes) -> None:
        """Store a file, unless there is no room; a disk that cannot be written is reported once."""
        if self._space is None or self._is_full:
            return
        size = len(content) + _CHECKSUM_BYTES
        if not self._make_room(size):
            return self._stop(f"the limit of {self.limit_bytes >> 20} MiB is reached")
        try:
            # Without fsync, which would cost more than computing the content again: the checksum detects a
            # loss.
            _write(self._space / name, content + _checksum(content))
        except OSError as error:
            return self._stop(f"{self._space} cannot be written: {error.strerror}")
        self._used += size

    def _stop(self, reason: str) -> None:
        self._is_full = True
        log.warning("frozen prefix: %s; further texts are computed in each step", reason)

    def _make_room(self, size: int) -> bool:
        stale = sorted(
            (folder for folder in self._spaces() if folder != self._space), key=_written_at, reverse=True
        )
        # Only other spaces: texts of the space in use are needed again in the next step.
        while self._used + size > self.limit_bytes and stale:
            oldest = stale.pop()
            self._used -= _bytes_in(oldest)
            shutil.rmtree(oldest, ignore_errors=True)
        return self._used + size <= self.limit_bytes

    def _spaces(self) -> list[Path]:
        return [entry for entry in self.folder.iterdir() if entry.is_dir()] if self.folder.is_dir() else []


def _write(file: Path, content: bytes) -> None:
    """Write a file atomically, with access for its owner only."""
    make_folder(file.parent)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(name, file)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _delete_abandoned(folder: Path) -> None:
    """Delete what killed processes left; another process may be writing a file that is not old."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            # A younger file may still be written by another process.
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def _checksum(content: bytes | bytearray) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "big")


def _bytes_in(folder: Path) -> int:
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                total += entry.stat().st_size
    return total


def _written_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
