"""Refuse a second service on one SQLite file: its clock, its locks and its ticker are made for one."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from coordinator.db.engine import Database
from coordinator.errors import SettingsUnusable

# Locks on these are advisory to one machine, or late, or none: SQLite's own documentation warns of them.
_NETWORK = re.compile(
    r"nfs4?|cifs|smb[0-9]?|smbfs|9p|afs|ceph|lustre|beegfs|gpfs|ocfs2|gfs2"
    r"|fuse\.(sshfs|glusterfs|ceph|ceph-fuse|rclone|s3fs|gcsfuse|juicefs)"
)
_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")  # as which a blank in a path is written there


@contextmanager
def only_replica(database: Database) -> Iterator[None]:
    """Hold a lock beside an SQLite file while serving; the operating system frees it when a process dies.

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
            f"TESSERA_DATABASE_URL: {path} is on a network file system ({kind}), where SQLite's locks do not"
            " hold: use a local disk, or PostgreSQL"
        )
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SettingsUnusable(
                f"another process serves {database.url.database}; several replicas need PostgreSQL"
            ) from error
        yield


def _opened(path: str) -> TextIO:
    try:
        return open(f"{path}-serving", "w")
    except OSError as error:
        raise SettingsUnusable(f"TESSERA_DATABASE_URL: {path} cannot be served: {error.strerror}") from error


def file_system_of(path: Path, mounts: str) -> str | None:
    """Say on what kind of file system a path is, going by the lines of Linux's mountinfo (proc(5))."""
    place = os.path.realpath(path)
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mounted = _OCTAL.sub(lambda code: chr(int(code[1], 8)), before.split()[4])
        inside = place == mounted or place.startswith(mounted.rstrip("/") + "/")
        if inside and (found is None or len(mounted) >= found[0]):  # of two in one place the later one shows
            found = len(mounted), after.split()[0]
    return found[1] if found else None


def _mounts() -> str:
    return _MOUNTS.read_text("utf-8", "surrogateescape") if _MOUNTS.exists() else ""
