"""Who this agent is: its key and membership on disk, how it got them, and that only one process uses them.

The private key is made here and never leaves the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from client_agent.coordinator_api import CoordinatorApi
from client_agent.errors import (
    AlreadyEnrolled,
    CoordinatorRefused,
    FolderInUse,
    NotEnrolled,
    SettingsUnusable,
    TokenDamaged,
)
from client_agent.round_folder import write_durably
from schemas.identity.documents import sign
from schemas.identity.enrolment_token import TokenMalformed, read
from schemas.identity.keys import name_of
from schemas.messages.enrolment import (
    EnrolmentRequest,
    KeyRotation,
    Profile,
    enrolment_statement,
    rotation_statement,
)
from schemas.messages.strict import Strict

_MEMBERSHIP = "membership.json"
_KEY = "client.key"
_NEXT_KEY = "next.key"
_OWNER_ONLY = 0o600

Connect = Callable[[Ed25519PrivateKey], AbstractContextManager[CoordinatorApi]]


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


def read_key(folder: Path, name: str = _KEY) -> Ed25519PrivateKey:
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

    Nothing of it is sent before the coordinator has proved that it is the one that the token names.

    Raises:
        AlreadyEnrolled: the folder holds a membership.
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
    key = _key(folder, _KEY)
    said = enrolment_statement(server=text.server, token=text.id, public_key=name_of(key), nonce=hello.nonce)
    answer = api.enrol(
        EnrolmentRequest(
            token=token,
            name=name,
            profile=profile,
            public_key=said["public_key"],
            nonce=said["nonce"],
            proof=sign("tessera-enrolment-v1", said, key),
        )
    )
    membership = Membership(
        name=name,
        client_id=answer.client_id,
        federation_id=answer.federation_id,
        server_key=hello.signing_key,
    )
    write_durably(folder / _MEMBERSHIP, membership.model_dump_json(indent=1).encode())
    return membership


def replace_key(connect: Connect, folder: Path) -> str:
    """Make a new key and have the old one endorse it; give when the old one is over, RFC 3339.

    Killed or cut off at any point, the same call again finishes what was begun. `connect` gives a connection
    that signs with a key.

    Raises:
        NotEnrolled: there is no membership.
        CoordinatorRefused: the coordinator does not take the new key.
    """
    member, old, new = read_membership(folder), read_key(folder), _key(folder, _NEXT_KEY)
    said = rotation_statement(
        federation=member.federation_id,
        client=member.client_id,
        old_key=name_of(old),
        public_key=name_of(new),
    )
    request = KeyRotation(
        public_key=name_of(new),
        proof=sign("tessera-rotation-v1", said, new),
        endorsement=sign("tessera-rotation-v1", said, old),
    )
    try:
        with connect(old) as api:
            over = api.replace_key(request).old_key_expires_at.isoformat()
    except CoordinatorRefused as refusal:
        if refusal.slug != "key-revoked":
            raise
        with connect(new) as api:  # an earlier call was heard and its answer lost for longer than the overlap
            api.me()
        over = "over"
    os.replace(folder / _NEXT_KEY, folder / _KEY)
    return over


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


def _key(folder: Path, name: str) -> Ed25519PrivateKey:
    """Make a key once: it is what makes a lost answer repeatable."""
    file = folder / name
    if not file.exists():
        made = Ed25519PrivateKey.generate()
        pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_durably(file, pem, mode=_OWNER_ONLY)
    return read_key(folder, name)
