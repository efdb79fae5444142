"""Keep files to their owner: what is written from now on, and what an earlier version left open to others.

A folder is closed only by who knows that nothing but Tessera's own files is in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700

_OF_OTHERS = 0o077


def close_umask() -> None:
    """Restrict this process to making files and folders that nobody but its user may open."""
    os.umask(_OF_OTHERS)


def tighten(paths: Iterable[Path]) -> list[Path]:
    """Close files and folders to everybody but their owner; return those that were open.

    What is missing, a link, or somebody else's is left alone, and so are files that cannot be changed.
    """
    return [path for path in paths if _tightened(path)]


def below(folder: Path) -> Iterator[Path]:
    """Return a folder with everything in it, without following links out of it."""
    yield folder
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in (*folders, *files))


def _tightened(path: Path) -> bool:
    try:
        status = path.lstat()
        if status.st_uid != os.geteuid() or not stat.S_IMODE(status.st_mode) & _OF_OTHERS:
            return False
        if stat.S_ISDIR(status.st_mode):
            path.chmod(FOLDER_MODE)
        elif stat.S_ISREG(status.st_mode):
            path.chmod(FILE_MODE)
        else:
            return False
    except OSError:
        return False
    return True
