"""Who this agent is: its key and membership on disk, how it got them, and that only one process uses them.

The private key is made here and never leaves the folder.
"""

from __future__ import annotations

import fcntl
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from client_agent.errors import (
    AlreadyEnrolled,
    CoordinatorRefused,
    FolderInUse,
    KeyRefused,
    NotEnrolled,
    SettingsUnusable,
    TokenDamaged,
)
from client_agent.settings import AgentSettings
from client_agent.storage.archive import move_aside, set_aside
from client_agent.storage.files import fsync_folder, write_durably
from client_agent.storage.folder_permissions import open_folder
from client_agent.transport.client import CoordinatorApi
from schemas.identity.documents import sign
from schemas.identity.enrolment_token import TokenMalformed, read
from schemas.identity.keys import name_of
from schemas.messages.base import Strict
from schemas.messages.enrolment import EnrolmentRequest, Profile, enrolment_statement

log = logging.getLogger("tessera.agent")

_MEMBERSHIP = "membership.json"
_LOCK = "agent.lock"
KEY = "client.key"
"""The file of this agent's private key."""
NEXT_KEY = "next.key"
"""The file of the key that is to replace this agent's."""
_KEY_BYTES = 32


class Membership(Strict):
    """What enrolment gave this agent; `server_key` is the coordinator's public key, as it proved it."""

    name: str
    client_id: str
    federation_id: str
    server_key: str


def read_membership(folder: Path) -> Membership:
    """Read who this agent is.

    Raises:
        NotEnrolled: it is nobody yet.
        SettingsUnusable: the file is damaged.
    """
    file = folder / _MEMBERSHIP
    try:
        return Membership.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise NotEnrolled(folder) from None
    except ValidationError as error:
        raise SettingsUnusable(
            f"{file} is damaged; restore it from a backup, or revoke and enrol anew"
        ) from error


def read_key(folder: Path, name: str = KEY) -> Ed25519PrivateKey:
    """Read this agent's private key, or the one that is to replace it.

    Raises:
        NotEnrolled: there is none.
        SettingsUnusable: the file is damaged.
    """
    file = folder / name
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except FileNotFoundError:
        raise NotEnrolled(folder) from None
    except (ValueError, TypeError) as error:
        raise SettingsUnusable(f"{file} is no private key; restore it from a backup") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsUnusable(f"{file} is no Ed25519 key; restore it from a backup")
    return key


def is_enrolled(folder: Path) -> bool:
    """Say whether this agent is a member."""
    return (folder / _MEMBERSHIP).exists()


def enrol(api: CoordinatorApi, folder: Path, *, token: str, name: str, profile: Profile) -> Membership:
    """Spend a one-time token. Killed or cut off at any point, the same call again gives the same identity.

    Nothing of it is sent before the coordinator has proved that it is the one that the token names. What an
    earlier client left in the folder is moved aside.

    Raises:
        AlreadyEnrolled: the folder holds a membership.
        KeyRefused: the key in the folder is a client's already.
        TokenDamaged: the token was not copied whole.
        CoordinatorNotTrusted: another coordinator answers.
        CoordinatorRefused: the token, the name or the profile is not accepted.
    """
    if is_enrolled(folder):
        raise AlreadyEnrolled(f"{folder} holds a membership already; use another folder for another client")
    try:
        text = read(token)
    except TokenMalformed as error:
        raise TokenDamaged from error
    hello = api.proved_hello(text.server)
    key = own_key(folder, KEY)
    said = enrolment_statement(server=text.server, token=text.id, public_key=name_of(key), nonce=hello.nonce)
    request = EnrolmentRequest(
        token=token,
        name=name,
        profile=profile,
        public_key=said["public_key"],
        nonce=said["nonce"],
        proof=sign("tessera-enrolment-v1", said, key),
    )
    with naming(folder / KEY):
        answer = api.enrol(request)
    membership = Membership(
        name=name,
        client_id=answer.client_id,
        federation_id=answer.federation_id,
        server_key=hello.signing_key,
    )
    if left := waiting_key(folder):
        move_aside(left)
    keep_to(folder, membership)
    write_durably(folder / _MEMBERSHIP, membership.model_dump_json(indent=1).encode())
    return membership


def keep_to(folder: Path, member: Membership) -> None:
    """Move aside what a client before this one left of the federation."""
    set_aside(
        folder / member.federation_id,
        federation=member.federation_id,
        client=member.client_id,
        server_key=member.server_key,
    )


def waiting_key(folder: Path) -> Path | None:
    """Name the file of a key that is to replace this agent's; None where no replacing is under way."""
    file = folder / NEXT_KEY
    return file if file.exists() else None


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Say which file holds the key that is refused."""
    try:
        yield
    except CoordinatorRefused as refusal:
        if refusal.slug != "weak-public-key":
            raise
        raise KeyRefused(file, refusal) from refusal


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep a second process away from the folder.

    Raises:
        FolderInUse: another agent runs on it.
        SettingsUnusable: it cannot be made.
    """
    try:
        open_folder(folder)
    except OSError as error:
        raise SettingsUnusable(f"folder {folder} cannot be made: {error.strerror}") from error
    with (folder / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"another agent runs on {folder}; stop it, or use another folder") from None
        yield


def is_in_use(folder: Path) -> bool:
    """Say whether an agent runs on the folder; one that starts in this very moment may be refused."""
    try:
        with (folder / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def pem_of(key: Ed25519PrivateKey) -> bytes:
    """Write a private key as its file has it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def own_key(folder: Path, name: str) -> Ed25519PrivateKey:
    """Make a key once: it is what makes a lost answer repeatable."""
    file = folder / name
    if not file.exists():
        key = Ed25519PrivateKey.from_private_bytes(secrets.token_bytes(_KEY_BYTES))  # RFC 8032, section 5.1.5
        write_durably(file, pem_of(key))
    fsync_folder(folder)  # who made it may have been killed before this, and nobody may hear of it until then
    return read_key(folder, name)


def one_try(settings: AgentSettings, member: Membership | None) -> CoordinatorApi:
    """Connect for calls that are tried once; as nobody where there is no member.

    Raises:
        NotEnrolled, SettingsUnusable: the member's key is missing or damaged.
    """
    return CoordinatorApi(
        str(settings.url),
        key=read_key(settings.folder) if member is not None else None,
        server_key=member.server_key if member is not None else None,
        deadline_seconds=0.0,
    )
