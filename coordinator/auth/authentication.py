"""Decide who is calling. Refuses to know what a caller may see or do: that is `permissions`.

Clients sign their requests; people, and the clients of a federation that allows it, send a bearer token.
That is 256 random bits, so its SHA-256 is stored and looked up: nothing can be learnt from the time a lookup
takes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from fastapi import Request
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from coordinator.auth import failure_limit, http_signatures, last_seen, principals
from coordinator.auth.principals import Holder, Token
from coordinator.errors import AuthMissing, CredentialInvalid, KeyRevoked
from coordinator.http.dependencies import database_of, settings_of
from coordinator.observability.logs import bind
from schemas.identity.signed_requests import SignedRequest
from schemas.messages.enrolment import Profile
from schemas.messages.tokens import PersonRole

CLIENT_PREFIX = "tsr_cl_"
RANKS: dict[PersonRole, int] = {"auditor": 1, "operator": 2, "admin": 3}
SETTINGS_ID = "settings"


@dataclass(frozen=True, slots=True)
class Person:
    """Someone with a person's token."""

    id: str
    role: PersonRole
    name: str

    def at_least(self, role: PersonRole) -> bool:
        """Say whether this person's role includes `role`."""
        return RANKS[self.role] >= RANKS[role]


@dataclass(frozen=True, slots=True)
class Member:
    """An enrolled client as it was when it was recognised.

    `unseen_at` = when that was, if nobody wrote down lately that it is here. `public_key` is the key it
    signed with, None for a bearer client. `signed` is this request's signature, which counts once.
    """

    client_id: str
    name: str
    federation_id: str
    base_model: str
    profile: Profile
    unseen_at: datetime | None
    public_key: str | None
    signed: SignedRequest | None = None


def hash_of(token: str) -> str:
    """Hash a token of high entropy as it is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def authenticated(request: Request) -> Person | Member:
    """Recognise who sent a request, in a look of its own, before any of its body is read.

    Raises:
        what `recognise` raises.
    """
    with looking(request) as asked:
        caller = recognise(request, asked)
    note_seen(request, caller)
    return caller


@contextmanager
def looking(request: Request) -> Iterator[Connection]:
    """Open the look in which a caller is recognised, and count a bearer token that is nobody's by address.

    Raises:
        RateLimited: too many from there were nobody's within the last minute.
    """
    try:
        with database_of(request).look() as asked:
            yield asked
    except CredentialInvalid:
        address = request.client.host if request.client is not None else ""
        failure_limit.note_bearer(
            database_of(request), address, settings_of(request).failed_tokens_per_minute
        )
        raise


def recognise(request: Request, asked: Connection) -> Person | Member:
    """Say who sent a request, by its header fields alone.

    Raises:
        AuthMissing: they name nobody.
        CredentialInvalid: the bearer token is nobody's; unknown, expired and revoked look the same.
        AuthorityUnknown, ClockSkew, DigestMissing, KeyRevoked, SignatureInvalid, SignatureProfileBroken: what
            is wrong with a signature.
    """
    settings = settings_of(request)
    if http_signatures.is_signed(request):
        claimed = http_signatures.read_signature(request)
        holder, moment = http_signatures.verify(asked, request, claimed, settings)
        caller: Person | Member = _as_member(holder, moment, signed=claimed)
    else:
        admin_token = settings.admin_token.get_secret_value() if settings.admin_token else None
        caller = _bearer(asked, request.headers.get("authorization"), admin_token=admin_token)
    if isinstance(caller, Member):
        bind(client=caller.client_id)
    else:
        bind(person=caller.id)
    return caller


def note_seen(request: Request, caller: Person | Member) -> None:
    """See to it that it is written down that a client is here, when that is due."""
    if isinstance(caller, Member) and caller.unseen_at is not None:
        sightings: last_seen.Sightings = request.app.state.sightings
        sightings.note(database_of(request), caller.client_id, caller.unseen_at)


def still_member(session: Session, member: Member) -> None:
    """Check in a later transaction that a client was not revoked since it was recognised.

    Raises:
        KeyRevoked, CredentialInvalid: it was, or its key was replaced.
    """
    is_enrolled, has_key = principals.standing(session, member.client_id, member.public_key)
    if member.public_key is None:
        if not is_enrolled:
            raise CredentialInvalid
    elif not is_enrolled or not has_key:
        raise KeyRevoked


def still_person(session: Session, person: Person) -> None:
    """Check in a later transaction that a person's token was not revoked since, and has not expired.

    Raises:
        CredentialInvalid: it was, or has.
    """
    if person.id != SETTINGS_ID:
        _valid(*principals.token(session, person.id))


def still_counts(session: Session, caller: Person | Member) -> None:
    """Check in a later transaction that a caller was not revoked since.

    Raises:
        KeyRevoked, CredentialInvalid: it was.
    """
    if isinstance(caller, Member):
        still_member(session, caller)
    else:
        still_person(session, caller)


def _bearer(asked: Connection, authorization: str | None, *, admin_token: str | None) -> Person | Member:
    if authorization is None:
        raise AuthMissing
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise CredentialInvalid
    if admin_token is not None and _is_same(token, admin_token.strip()):
        return Person(id=SETTINGS_ID, role="admin", name="TESSERA_ADMIN_TOKEN")
    digest = hash_of(token)
    if not token.startswith(CLIENT_PREFIX):
        return _valid(*principals.with_token(asked, digest))
    moment, holder = principals.with_credential(asked, digest)
    if holder is None or holder.state != "enrolled":
        raise CredentialInvalid
    return _as_member(holder, moment)


def _is_same(sent: str, token: str) -> bool:
    """Compare what a header brought, its bytes read as Latin-1, with a token, in constant time."""
    return hmac.compare_digest(
        hashlib.sha256(sent.encode("latin-1", "replace")).digest(), hashlib.sha256(token.encode()).digest()
    )


def _valid(moment: datetime, token: Token | None) -> Person:
    if token is None or token.revoked_at is not None:
        raise CredentialInvalid
    if token.expires_at is not None and token.expires_at <= moment:
        raise CredentialInvalid
    for role in RANKS:
        if role == token.role:
            return Person(id=token.id, role=role, name=token.name)
    raise CredentialInvalid


def _as_member(holder: Holder, moment: datetime, *, signed: SignedRequest | None = None) -> Member:
    return Member(
        client_id=holder.id,
        name=holder.name,
        federation_id=holder.federation_id,
        base_model=holder.base_model,
        profile=Profile.model_validate(holder.profile),
        unseen_at=moment if last_seen.is_due(holder.last_seen_at, moment) else None,
        public_key=holder.public_key,
        signed=signed,
    )
