"""Atomic, durable writes of files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Write a file atomically and durably, with access for its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename is atomic within one file system only.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            # Before the rename: otherwise a crash may leave the new name with an empty file.
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    # The rename itself is durable only once the folder is synced.
    fsync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Create a folder that its owner alone can read, and missing parents, durably."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    # From the top: a folder is durable only if the entry in its parent is.
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        fsync_folder(folder.parent)


def fsync_folder(path: Path) -> None:
    """Sync a folder's entries to disk, so that a rename survives a crash."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
