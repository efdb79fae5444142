"""The agent's identity on disk: its private key, and enrolment, which makes it a member."""

from __future__ import annotations

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

from client_agent.agent_entries import ENROLLED, KEY, MEMBERSHIP, NEXT_KEY
from client_agent.errors import (
    AlreadyEnrolled,
    CoordinatorRefused,
    KeyRefused,
    ModelChanged,
    NotEnrolled,
    SettingsUnusable,
    TokenDamaged,
)
from client_agent.identity.agent_folder import Membership, is_enrolled
from client_agent.settings import AgentSettings
from client_agent.storage.archive import move_aside, set_aside
from client_agent.storage.files import fsync_folder, write_durably
from client_agent.transport.client import CoordinatorApi
from client_agent.transport.sent_log import SentLog
from schemas.identity.documents import sign
from schemas.identity.enrolment_token import EnrolmentTokenText, TokenMalformed, read
from schemas.identity.keys import name_of
from schemas.messages.enrolment import (
    EnrolmentRequest,
    Profile,
    TokenizerDigests,
    enrolment_statement,
)
from schemas.names.spelling import NameRefused, new_name

log = logging.getLogger("tessera.agent")

PROFILE = ENROLLED
"""The model and tokenizer with which this client enrolled."""
_KEY_BYTES = 32


def read_key(folder: Path, name: str = KEY) -> Ed25519PrivateKey:
    """Read the agent's private key, or with `NEXT_KEY` the new key of a rotation.

    Raises:
        NotEnrolled: the file does not exist.
        SettingsUnusable: the file is damaged.
    """
    file = folder / name
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except FileNotFoundError:
        raise NotEnrolled(folder) from None
    except (ValueError, TypeError) as error:
        raise SettingsUnusable(f"{file} is not a private key; restore it from a backup") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsUnusable(f"{file} is not an Ed25519 key; restore it from a backup")
    return key


def checked_name(name: str) -> str:
    """Return a client's name in its normal form.

    Raises:
        SettingsUnusable: no client can have this name.
    """
    try:
        return new_name(name)
    except NameRefused as error:
        raise SettingsUnusable(
            f"the client's name is refused: {error}; use the name that the operator issued with the token"
        ) from error


def read_token(token: str) -> EnrolmentTokenText:
    """Parse an enrolment token.

    Raises:
        TokenDamaged: it is incomplete.
    """
    try:
        return read(token)
    except TokenMalformed as error:
        raise TokenDamaged from error


def require_unenrolled(folder: Path) -> None:
    """Raise AlreadyEnrolled if an agent's folder holds a membership."""
    if is_enrolled(folder):
        raise AlreadyEnrolled(f"{folder} holds a membership already; use another folder for another client")


def enrol(api: CoordinatorApi, folder: Path, *, token: str, name: str, profile: Profile) -> Membership:
    """Redeem an enrolment token. Idempotent: after a crash or a lost answer, repeat the same call.

    The token is sent only after the coordinator proves the key that the token names. Files of an earlier
    client in the folder are moved aside.

    Raises:
        AlreadyEnrolled: the folder holds a membership.
        SettingsUnusable: no client can have this name.
        KeyRefused: the key in the folder belongs to a client already.
        TokenDamaged: the token is incomplete.
        CoordinatorNotTrusted: another coordinator answers.
        CoordinatorRefused: the token, the name or the profile is not accepted.
    """
    require_unenrolled(folder)
    name = checked_name(name)
    token_text = read_token(token)
    # Before the token is sent: a coordinator that receives it could enrol another client in this one's place.
    hello = api.proved_hello(token_text.server)
    # Stored before the request, so that a repeated enrolment has the same key and counts as the same client.
    key = load_or_create_key(folder, KEY)
    statement = enrolment_statement(
        server=token_text.server, token=token_text.id, public_key=name_of(key), nonce=hello.nonce
    )
    request = EnrolmentRequest(
        token=token,
        name=name,
        profile=profile,
        public_key=statement["public_key"],
        nonce=statement["nonce"],
        proof=sign("tessera-enrolment-v1", statement, key),
    )
    with name_refused_key(folder / KEY):
        answer = api.enrol(request)
    membership = Membership(
        name=name,
        client_id=answer.client_id,
        federation_id=answer.federation_id,
        server_key=hello.signing_key,
    )
    if pending_key := pending_key_file(folder):
        move_aside(pending_key)
    set_aside_earlier_client(folder, membership)
    write_durably(folder / PROFILE, profile.model_dump_json(indent=1).encode())
    # Last: the folder counts as enrolled once this file is there.
    write_durably(folder / MEMBERSHIP, membership.model_dump_json(indent=1).encode())
    return membership


def require_enrolled(folder: Path, base_model: str, tokenizer: TokenizerDigests) -> None:
    """Check that an enrolled silo still has the model of its enrolment, for which updates are averaged.

    Raises:
        ModelChanged: the base model or a part of its tokenizer is another one.
        SettingsUnusable: the file of the enrolment is missing or damaged.
    """
    try:
        enrolled = Profile.model_validate_json((folder / PROFILE).read_bytes())
    except FileNotFoundError as error:
        if not is_enrolled(folder):
            return
        raise SettingsUnusable(f"{folder / PROFILE} is missing; restore it from a backup") from error
    except ValidationError as error:
        raise SettingsUnusable(f"{folder / PROFILE} is damaged; restore it from a backup") from error
    if enrolled.base_model != base_model:
        raise ModelChanged(
            f"this client enrolled with the base model {enrolled.base_model}, and model is {base_model} now; "
            "set model back, or ask the operator for a token and enrol with another folder"
        )
    parts = enrolled.tokenizer.differing(tokenizer) if enrolled.tokenizer is not None else []
    if parts:
        raise ModelChanged(
            f"the tokenizer of {base_model} differs in {', '.join(parts)} from that with which this client "
            "enrolled; restore its files (and chat_template), or ask the operator for a token and enrol with "
            "another folder"
        )


def set_aside_earlier_client(folder: Path, member: Membership) -> None:
    set_aside(
        folder / member.federation_id,
        federation_id=member.federation_id,
        client_id=member.client_id,
        server_key=member.server_key,
    )


def pending_key_file(folder: Path) -> Path | None:
    """Return the file of the new key during a rotation, else None."""
    file = folder / NEXT_KEY
    return file if file.exists() else None


@contextmanager
def name_refused_key(file: Path) -> Iterator[None]:
    """Raise KeyRefused, with the key's file, where the coordinator refuses a public key."""
    try:
        yield
    except CoordinatorRefused as refusal:
        if refusal.slug != "weak-public-key":
            raise
        raise KeyRefused(file, refusal) from refusal


def encode_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load_or_create_key(folder: Path, name: str) -> Ed25519PrivateKey:
    """Read a private key; create it first if the file is missing, so that a retry uses the same key."""
    file = folder / name
    if not file.exists():
        key = Ed25519PrivateKey.from_private_bytes(secrets.token_bytes(_KEY_BYTES))  # RFC 8032, section 5.1.5
        write_durably(file, encode_pem(key))
    fsync_folder(
        folder
    )  # an earlier process may have crashed before this; no request may use the key until then
    return read_key(folder, name)


def connect_once(settings: AgentSettings, member: Membership | None) -> CoordinatorApi:
    """Return a connection without retries, unauthenticated where there is no member.

    Raises:
        NotEnrolled, SettingsUnusable: the member's key is missing or damaged.
    """
    return CoordinatorApi(
        str(settings.url),
        key=read_key(settings.folder) if member is not None else None,
        server_key=member.server_key if member is not None else None,
        deadline_seconds=0.0,
        sent=SentLog(settings.folder),
    )
