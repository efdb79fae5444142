"""File permissions: new files and folders belong to their owner alone, and older ones are tightened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700

_GROUP_AND_OTHERS = 0o077


def close_umask() -> None:
    """Restrict new files and folders of this process to the owner."""
    os.umask(_GROUP_AND_OTHERS)


def tighten(paths: Iterable[Path]) -> list[Path]:
    """Restrict files and folders to their owner; return those that were open.

    Missing files, links, files of another user and read-only files are skipped.
    """
    return [path for path in paths if _tightened(path)]


def below(folder: Path) -> Iterator[Path]:
    """Yield a folder and everything in it, without following links: the folder may be one itself."""
    if folder.is_symlink():
        return
    yield folder
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in (*folders, *files))


def _tightened(path: Path) -> bool:
    try:
        status = path.lstat()
        # Files of other users cannot be changed, and are theirs to protect.
        if status.st_uid != os.geteuid() or not stat.S_IMODE(status.st_mode) & _GROUP_AND_OTHERS:
            return False
        if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
            return False
        # A link that replaces the file meanwhile is not opened.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            mode = os.fstat(descriptor).st_mode
            os.fchmod(descriptor, FOLDER_MODE if stat.S_ISDIR(mode) else FILE_MODE)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True
