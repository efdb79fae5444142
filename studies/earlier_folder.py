"""Folders of earlier runs: a new run keeps them under another name."""

from __future__ import annotations

import fcntl
from itertools import count
from pathlib import Path

from schemas.user_files import FileUnusable

_SERVING = "coordinator/tessera.db-serving"


def set_aside(folder: Path) -> Path | None:
    """Rename a folder to the first free name of `folder.1`, `folder.2` and so on; None if it does not exist.

    Raises:
        FileUnusable: its coordinator still runs.
        OSError: it cannot be renamed.
    """
    if not folder.exists():
        return None
    _require_ended(folder)
    for number in count(1):
        earlier = folder.with_name(f"{folder.name}.{number}")
        if not earlier.exists():
            folder.rename(earlier)
            return earlier
    raise AssertionError  # count does not end


def _require_ended(folder: Path) -> None:
    """Check that no coordinator serves the folder: it would go on with the new run's files of the same names.

    Raises:
        FileUnusable: one does.
    """
    lock = folder / _SERVING
    if not lock.is_file():
        return
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileUnusable(
                f"--out: the run in {folder} has not ended; end it with Ctrl-C, or pass a new name"
            ) from error
