"""Refuse a second service process on one SQLite file: its clock, locks and ticker serve a single process."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from coordinator.db.engine import Database
from coordinator.db.failures import explain_file
from coordinator.errors import SettingsUnusable

# File locks do not work reliably on these, as SQLite's documentation warns.
_NETWORK = re.compile(
    r"nfs4?|cifs|smb[0-9]?|smbfs|9p|afs|ceph|lustre|beegfs|gpfs|ocfs2|gfs2"
    r"|fuse\.(sshfs|glusterfs|ceph|ceph-fuse|rclone|s3fs|gcsfuse|juicefs)"
)
_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")  # the escape of a blank in a path


@contextmanager
def only_replica(database: Database) -> Iterator[None]:
    """Hold a lock beside an SQLite file while serving; the operating system frees it when the process ends.

    Raises:
        SettingsUnusable: another process serves this file, or it is on a network file system.
    """
    if not database.is_sqlite:
        yield
        return
    path = database.url.database or ""
    kind = file_system_of(Path(path), _mounts())
    if kind is not None and _NETWORK.fullmatch(kind):
        raise SettingsUnusable(
            f"TESSERA_DATABASE_URL: {path} is on a network file system ({kind}), where SQLite's locks are "
            "unreliable; use a local disk, or PostgreSQL"
        )
    with _open_lock(path) as file:
        try:
            # The operating system frees this lock however the process ends; a file with a process id could
            # go stale.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingsUnusable(
                f"another process serves {database.url.database}; stop it, or use PostgreSQL for replicas"
            ) from error
        yield


def _open_lock(path: str) -> TextIO:
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise SettingsUnusable(
            f"TESSERA_DATABASE_URL: {path} is a folder; name a file in it, such as sqlite:///{path}/tessera.db"
        )
    if not os.path.isdir(folder):
        raise SettingsUnusable(
            f"TESSERA_DATABASE_URL: there is no folder {folder}; create it, or correct the path"
        )
    try:
        return open(f"{path}-serving", "w")
    except OSError as error:
        raise SettingsUnusable(f"TESSERA_DATABASE_URL: {explain_file(error)}") from error


def file_system_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system of a path, from Linux's mountinfo (proc(5))."""
    resolved = os.path.realpath(path)
    match: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mounted = _OCTAL.sub(lambda code: chr(int(code[1], 8)), before.split()[4])
        inside = resolved == mounted or resolved.startswith(mounted.rstrip("/") + "/")
        if inside and (
            match is None or len(mounted) >= match[0]
        ):  # the later of two mounts at one path is visible
            match = len(mounted), after.split()[0]
    return match[1] if match else None


def _mounts() -> str:
    return _MOUNTS.read_text("utf-8", "surrogateescape") if _MOUNTS.exists() else ""
