"""An agent's folder: the membership that enrolment stored there, and the lock of the running agent.

Needs neither a key nor a connection.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from client_agent.agent_entries import LOCK, MEMBERSHIP
from client_agent.errors import FolderInUse, NotEnrolled, SettingsUnusable
from client_agent.storage.folder_permissions import open_folder
from schemas.messages.base import Strict
from schemas.user_files import FileUnusable, require_writable_folder


class Membership(Strict):
    """The result of enrolment; `server_key` is the coordinator's public key, as proved at enrolment."""

    name: str
    client_id: str
    federation_id: str
    server_key: str


def read_membership(folder: Path) -> Membership:
    """Read the membership.

    Raises:
        NotEnrolled: the folder holds no membership.
        SettingsUnusable: the file is damaged.
    """
    file = folder / MEMBERSHIP
    try:
        return Membership.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise NotEnrolled(folder) from None
    except ValidationError as error:
        raise SettingsUnusable(
            f"{file} is damaged; restore it from a backup, or ask the operator to revoke this client, "
            "and enrol again"
        ) from error


def is_enrolled(folder: Path) -> bool:
    return (folder / MEMBERSHIP).exists()


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder for this process.

    Raises:
        FolderInUse: another agent runs on the folder.
        SettingsUnusable: the folder cannot be created or written.
    """
    try:
        open_folder(folder)
    except OSError as error:
        raise SettingsUnusable(
            f"folder {folder} cannot be created ({error.strerror}); set `folder` to a writable path"
        ) from error
    try:
        require_writable_folder(folder, "folder")
    except FileUnusable as error:
        raise SettingsUnusable(str(error)) from error
    # flock ends with the process, so a killed agent leaves no stale lock.
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"another agent runs on {folder}; stop it, or use another folder") from None
        except OSError as error:
            raise SettingsUnusable(
                f"folder {folder} cannot be locked ({error.strerror}): its file system has no locks between "
                "machines. Mount Lustre with -o flock, and NFS with a lock daemon, or set `folder` to "
                "another file system"
            ) from error
        yield


def is_in_use(folder: Path) -> bool:
    """Whether an agent runs on the folder. The probe may make an agent that starts just now fail."""
    try:
        with (folder / LOCK).open() as file:
            # Shared, so that several probes at a time do not disturb each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
