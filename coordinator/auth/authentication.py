"""Authenticate the sender of a request: clients sign, people and bearer clients send a token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fastapi import Request
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from coordinator.auth import failure_limit, http_signatures, last_seen, principals, sign_outs
from coordinator.auth.oidc import IdentityProvider, ProviderIdentity
from coordinator.auth.principals import StoredClient, Token
from coordinator.db.engine import database_time
from coordinator.errors import AuthMissing, CredentialInvalid, Forbidden, KeyRevoked
from coordinator.http.dependencies import database_of, settings_of
from coordinator.observability.logs import bind
from schemas.identity.group_roles import RANKS
from schemas.identity.signed_requests import SignedRequest
from schemas.messages.enrolment import Profile
from schemas.messages.tokens import PersonRole

CLIENT_PREFIX = "tsr_cl_"
SETTINGS_ID = "settings"


@dataclass(frozen=True, slots=True)
class Person:
    """A person, authenticated by a token.

    Attributes:
        role: in the federation of the request, or in all.
        federations: those in which a person of an identity provider has a role; None = all.
        expires_at: when a token of an identity provider ends; None for a token of this coordinator.
        token_digest: of a token of an identity provider, else None.
    """

    id: str
    role: PersonRole
    name: str
    federations: frozenset[str] | None = None
    expires_at: datetime | None = None
    token_digest: str | None = None

    def at_least(self, role: PersonRole) -> bool:
        return RANKS[self.role] >= RANKS[role]


@dataclass(frozen=True, slots=True)
class Member:
    """An enrolled client at the time of authentication.

    Attributes:
        seen_at: the time of authentication if `last_seen_at` is due for an update, else None.
        public_key: the key that signed the request; None for a bearer client.
        signed: the signature of this request, which is accepted once.
    """

    client_id: str
    name: str
    federation_id: str
    base_model: str
    profile: Profile
    seen_at: datetime | None
    public_key: str | None
    signed: SignedRequest | None = None


def hash_of(token: str) -> str:
    # A plain hash is enough for 256 random bits: nobody can guess them, and the time of a look-up reveals
    # nothing.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def authenticated(request: Request, *, anywhere: bool = False) -> Person | Member:
    """Authenticate a request over a database connection of its own, before its body is read.

    A person with a role in some federations only is refused outside them, unless `anywhere` is set.

    Raises:
        Forbidden: the person has no role in the federation of the path, or the path is of none.
        RateLimited: too many invalid tokens from this address within the last minute.
        CredentialInvalid, Refusal: as `identify`.
    """
    try:
        with database_of(request).autocommit() as connection:
            caller = identify(request, connection)
    except CredentialInvalid:
        count_invalid_token(request)
        raise
    scope = caller.federations if isinstance(caller, Person) and not anywhere else None
    if scope is not None and request.path_params.get("fid") not in scope:
        raise Forbidden(needs="auditor")
    record_seen(request, caller)
    return caller


def count_invalid_token(request: Request) -> None:
    """Count an invalid bearer token by the address of the request, in a transaction.

    Raises:
        RateLimited: too many invalid tokens from this address within the last minute.
    """
    address = request.client.host if request.client is not None else ""
    failure_limit.count_bearer_failure(
        database_of(request), address, settings_of(request).failed_tokens_per_minute
    )


def identify(request: Request, connection: Connection) -> Person | Member:
    """Return the authenticated sender of a request, from its header fields alone.

    Raises:
        AuthMissing: no credential.
        CredentialInvalid: the bearer token is unknown, expired, revoked or signed out.
        AuthorityUnknown, ClockSkew, DigestMissing, KeyRevoked, SignatureInvalid, SignatureProfileBroken:
            the signature is not acceptable.
    """
    settings = settings_of(request)
    if http_signatures.is_signed(request):
        signed = http_signatures.read_signature(request)
        client, now = http_signatures.verify(connection, request, signed, settings)
        caller: Person | Member = _as_member(client, now, signed=signed)
    else:
        admin_token = settings.admin_token.get_secret_value() if settings.admin_token else None
        token = _token_of(request.headers.getlist("authorization"))
        provider: IdentityProvider | None = request.app.state.identity_provider
        # The forms do not overlap: tokens of the coordinator have a prefix and no dots.
        if provider is not None and _is_jwt(token):
            signed_in = provider.person(token)
            sign_outs.check(connection, signed_in.token_digest)
            caller = _signed_in(signed_in, request.path_params.get("fid"))
        else:
            caller = _bearer(connection, token, admin_token=admin_token)
    if isinstance(caller, Member):
        bind(client=caller.client_id)
    else:
        bind(person=caller.id)
    return caller


def record_seen(request: Request, caller: Person | Member) -> None:
    """Record that a client was seen, if its `last_seen_at` is due for an update."""
    if isinstance(caller, Member) and caller.seen_at is not None:
        writer: last_seen.LastSeenWriter = request.app.state.last_seen
        writer.record(caller.client_id, caller.seen_at)


def still_member(session: Session, member: Member) -> None:
    """Check in a later transaction that an authenticated client is still a member.

    Raises:
        KeyRevoked, CredentialInvalid: the client was revoked, or its key replaced.
    """
    is_enrolled, has_key = principals.membership(session, member.client_id, member.public_key)
    if member.public_key is None:
        if not is_enrolled:
            raise CredentialInvalid
    elif not is_enrolled or not has_key:
        raise KeyRevoked


def still_person(session: Session, person: Person) -> None:
    """Check in a later transaction that a person's token is still valid.

    Raises:
        CredentialInvalid: it was revoked or signed out, or has expired.
    """
    if person.expires_at is not None and person.token_digest is not None:
        if person.expires_at <= database_time(session):
            raise CredentialInvalid
        sign_outs.check(session, person.token_digest)
    elif person.id != SETTINGS_ID:
        _valid(*principals.token_by_id(session, person.id))


def still_counts(session: Session, caller: Person | Member) -> None:
    """Check in a later transaction that a caller is still valid.

    Raises:
        KeyRevoked, CredentialInvalid: it was revoked.
    """
    if isinstance(caller, Member):
        still_member(session, caller)
    else:
        still_person(session, caller)


def _token_of(authorizations: Sequence[str]) -> str:
    """Return the bearer token."""
    if not authorizations:
        raise AuthMissing
    scheme, _, token = authorizations[0].partition(" ")
    token = token.strip()
    # Of two fields a proxy in front may have checked the other one.
    if len(authorizations) > 1 or scheme.lower() != "bearer" or not token:
        raise CredentialInvalid
    return token


def _is_jwt(token: str) -> bool:
    """Whether a token begins as the base64url of a JSON object does, and has three parts."""
    return token.startswith("eyJ") and token.count(".") == 2


def _signed_in(signed: ProviderIdentity, federation_id: str | None) -> Person:
    roles = [role for role in (signed.roles.get(None), signed.roles.get(federation_id)) if role is not None]
    return Person(
        id=signed.id,
        role=max(roles, key=RANKS.__getitem__, default="auditor"),
        name=signed.name,
        federations=None if None in signed.roles else frozenset(filter(None, signed.roles)),
        expires_at=signed.expires_at,
        token_digest=signed.token_digest,
    )


def _bearer(connection: Connection, token: str, *, admin_token: str | None) -> Person | Member:
    if admin_token is not None and _is_same(token, admin_token.strip()):
        return Person(id=SETTINGS_ID, role="admin", name="TESSERA_ADMIN_TOKEN")
    digest = hash_of(token)
    if not token.startswith(CLIENT_PREFIX):
        return _valid(*principals.token_by_hash(connection, digest))
    now, client = principals.client_by_credential(connection, digest)
    if client is None or client.state != "enrolled":
        raise CredentialInvalid
    return _as_member(client, now)


def _is_same(presented: str, token: str) -> bool:
    """Compare a header value, decoded as Latin-1, with a token in constant time."""
    return hmac.compare_digest(
        hashlib.sha256(presented.encode("latin-1", "replace")).digest(),
        hashlib.sha256(token.encode()).digest(),
    )


def _valid(now: datetime, token: Token | None) -> Person:
    if token is None or token.revoked_at is not None:
        raise CredentialInvalid
    if token.expires_at is not None and token.expires_at <= now:
        raise CredentialInvalid
    for role in RANKS:
        if role == token.role:
            return Person(id=token.id, role=role, name=token.name)
    raise CredentialInvalid


def _as_member(client: StoredClient, now: datetime, *, signed: SignedRequest | None = None) -> Member:
    return Member(
        client_id=client.id,
        name=client.name,
        federation_id=client.federation_id,
        base_model=client.base_model,
        profile=Profile.model_validate(client.profile),
        # Times are written in intervals: a write for each poll would saturate the database.
        seen_at=now if last_seen.is_due(client.last_seen_at, now) else None,
        public_key=client.public_key,
        signed=signed,
    )
