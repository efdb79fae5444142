"""Write files that only their owner may read, atomically."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """Write a file with mode 0600, replacing any file of this name; it is on disk on return.

    Raises:
        OSError: the folder cannot be written.
    """
    # Renamed over the old file once it is complete: a crash leaves one or the other.
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(new, file)
    # The rename is on disk only once the folder is synced.
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
