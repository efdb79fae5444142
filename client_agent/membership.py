"""Who this agent is: its credential on disk, how it got it, and that only one process uses it at a time."""

from __future__ import annotations

import base64
import fcntl
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from client_agent.coordinator_api import CoordinatorApi
from client_agent.errors import AlreadyEnrolled, FolderInUse, NotEnrolled, SettingsUnusable
from client_agent.round_folder import write_durably
from schemas.messages.enrolment import EnrolmentRequest, Profile
from schemas.messages.strict import Strict

_CREDENTIAL = "credential.json"
_RETRY_KEY = "enrolling.key"
_OWNER_ONLY = 0o600


class Membership(Strict):
    """What enrolment gave this agent; the credential is a secret."""

    name: str
    client_id: str
    federation_id: str
    credential: str


def read_membership(folder: Path) -> Membership:
    """Read the credential.

    Raises:
        NotEnrolled: there is none.
        SettingsUnusable: the file is damaged.
    """
    file = folder / _CREDENTIAL
    try:
        return Membership.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise NotEnrolled(folder) from None
    except ValidationError as error:
        raise SettingsUnusable(
            f"{file} is damaged; restore it from a backup, or revoke and enrol anew"
        ) from error


def is_enrolled(folder: Path) -> bool:
    """Say whether there is a credential."""
    return (folder / _CREDENTIAL).exists()


def enrol(api: CoordinatorApi, folder: Path, *, token: str, name: str, profile: Profile) -> Membership:
    """Spend a one-time token. Killed or cut off at any point, the same call again gives the same identity.

    Raises:
        AlreadyEnrolled: the folder holds a credential.
        CoordinatorRefused: the token, the name or the profile is not accepted.
    """
    if is_enrolled(folder):
        raise AlreadyEnrolled(f"{folder} holds a credential already; use another folder for another client")
    request = EnrolmentRequest(token=token, name=name, profile=profile, retry_key=_retry_key(folder))
    answer = api.enrol(request)
    membership = Membership(
        name=name,
        client_id=answer.client_id,
        federation_id=answer.federation_id,
        credential=answer.credential,
    )
    write_durably(folder / _CREDENTIAL, membership.model_dump_json(indent=1).encode(), mode=_OWNER_ONLY)
    (folder / _RETRY_KEY).unlink(missing_ok=True)
    return membership


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep a second process away from the folder.

    Raises:
        FolderInUse: another agent runs on it.
        SettingsUnusable: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsUnusable(f"folder {folder} cannot be made: {error.strerror}") from error
    with (folder / "agent.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"another agent runs on {folder}; stop it, or use another folder") from None
        yield


def _retry_key(folder: Path) -> str:
    """Make the key once and keep it until the answer is on disk: it makes a lost answer repeatable."""
    file = folder / _RETRY_KEY
    if not file.exists():
        key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        write_durably(file, key.encode(), mode=_OWNER_ONLY)
    return file.read_text()
