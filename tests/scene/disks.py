"""Small disks that are full or read-only, where this process may mount them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system in memory on a folder until the end; skip the test where that is not allowed."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("this process may not mount file systems")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill the disk of a folder with a file, and return it."""
    file = folder / "filler"
    with file.open("ab", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            return file
