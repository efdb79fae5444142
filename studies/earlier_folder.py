"""Folders of earlier runs: a new run keeps them under another name."""

from __future__ import annotations

from itertools import count
from pathlib import Path


def set_aside(folder: Path) -> Path | None:
    """Rename a folder to the first free name of `folder.1`, `folder.2` and so on; None if it does not exist.

    Raises:
        OSError: it cannot be renamed.
    """
    if not folder.exists():
        return None
    for number in count(1):
        earlier = folder.with_name(f"{folder.name}.{number}")
        if not earlier.exists():
            folder.rename(earlier)
            return earlier
    raise AssertionError  # count does not end
