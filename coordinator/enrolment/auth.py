"""Decide who is calling. Refuses to know what a caller may see beyond its role and its federation.

Clients sign their requests; people, and the clients of a federation that allows it, send a bearer token.
That is 256 random bits, so its SHA-256 is stored and looked up: nothing can be learnt from the time a lookup
takes. Every route names who it is for by one of the aliases at the end of this file.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from anyio import to_thread
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from sqlalchemy.orm import Session

from coordinator.database import Database, now
from coordinator.enrolment import callers, nonces, seen, signatures, store
from coordinator.enrolment.callers import Holder
from coordinator.errors import AuthMissing, CredentialInvalid, Forbidden, KeyRevoked, NotFound
from coordinator.logs import bind
from coordinator.paths import ClientId, FederationId
from coordinator.sessions import TheDatabase, TheSettings
from coordinator.settings import Settings
from coordinator.tables import PersonToken
from schemas.identity.signed_requests import SignedRequest
from schemas.messages.enrolment import Profile
from schemas.messages.people import PersonRole

CLIENT_PREFIX = "tsr_cl_"
_RANKS: dict[PersonRole, int] = {"auditor": 1, "operator": 2, "admin": 3}
_SETTINGS_ID = "settings"


@dataclass(frozen=True, slots=True)
class Person:
    """Someone with a person's token."""

    id: str
    role: PersonRole
    name: str

    def at_least(self, role: PersonRole) -> bool:
        """Say whether this person's role includes `role`."""
        return _RANKS[self.role] >= _RANKS[role]


@dataclass(frozen=True, slots=True)
class Member:
    """An enrolled client as it was when it was recognised.

    `is_unseen` = nobody wrote down lately that it is here. `public_key` is the key it signed with, None for
    a bearer client. `post` is the signature of a POST.
    """

    client_id: str
    name: str
    federation_id: str
    base_model: str
    profile: Profile
    is_unseen: bool
    public_key: str | None
    post: SignedRequest | None = None


def hash_of(token: str) -> str:
    """Hash a token of high entropy as it is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def authenticate(session: Session, authorization: str | None, *, admin_token: str | None) -> Person | Member:
    """Recognise a caller by the Authorization header.

    Raises:
        AuthMissing: there is no header.
        CredentialInvalid: it is not the bearer token of anyone; unknown, expired and revoked look the same.
    """
    if authorization is None:
        raise AuthMissing
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise CredentialInvalid
    if admin_token is not None and _is_same(token, admin_token.strip()):
        return Person(id=_SETTINGS_ID, role="admin", name="TESSERA_ADMIN_TOKEN")
    digest = hash_of(token)
    return _member(session, digest) if token.startswith(CLIENT_PREFIX) else _person(session, digest)


def still_member(session: Session, member: Member) -> None:
    """Check in a later transaction that a client was not revoked since it was recognised.

    Raises:
        KeyRevoked, CredentialInvalid: it was, or its key was replaced.
    """
    is_enrolled, has_key = callers.standing(session, member.client_id, member.public_key)
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
    if person.id != _SETTINGS_ID:
        _valid(session, store.person_token(session, person.id))


def _is_same(sent: str, token: str) -> bool:
    """Compare what a header brought, its bytes read as Latin-1, with a token, in constant time."""
    return hmac.compare_digest(
        hashlib.sha256(sent.encode("latin-1", "replace")).digest(), hashlib.sha256(token.encode()).digest()
    )


def _person(session: Session, digest: str) -> Person:
    return _valid(session, store.person_token_by_hash(session, digest))


def _valid(session: Session, row: PersonToken | None) -> Person:
    if row is None or row.revoked_at is not None:
        raise CredentialInvalid
    if row.expires_at is not None and row.expires_at <= now(session):
        raise CredentialInvalid
    for role in _RANKS:
        if role == row.role:
            return Person(id=row.id, role=role, name=row.name)
    raise CredentialInvalid


def _member(session: Session, digest: str) -> Member:
    holder = callers.with_credential(session, digest)
    if holder is None or holder.state != "enrolled":
        raise CredentialInvalid
    return _as_member(holder, now(session))


def _as_member(holder: Holder, moment: datetime, *, post: SignedRequest | None = None) -> Member:
    return Member(
        client_id=holder.id,
        name=holder.name,
        federation_id=holder.federation_id,
        base_model=holder.base_model,
        profile=Profile.model_validate(holder.profile),
        is_unseen=seen.is_due(holder.last_seen_at, moment),
        public_key=holder.public_key,
        post=post,
    )


def _signer(request: Request, database: Database, settings: Settings) -> Member:
    """Recognise a client by its signature."""
    claimed = signatures.read_signature(request)
    with database.read() as session:
        holder, moment = signatures.verify(session, request, claimed, settings)
    return _as_member(holder, moment, post=claimed if request.method == "POST" else None)


_documented = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="A person's token, or a client's credential where the plan allows bearer clients. "
    "Other clients send Signature-Input and Signature (RFC 9421) instead.",
)


def authenticated(request: Request, database: Database, settings: Settings) -> Person | Member:
    """Recognise who sent a request, in a short read of its own, before any of its body is read."""
    if signatures.is_signed(request):
        caller: Person | Member = _signer(request, database, settings)
    else:
        admin_token = settings.admin_token.get_secret_value() if settings.admin_token else None
        with database.read() as session:
            caller = authenticate(session, request.headers.get("authorization"), admin_token=admin_token)
    if isinstance(caller, Member):
        bind(client=caller.client_id)
        if caller.is_unseen:
            seen.note(database, caller.client_id)
    else:
        bind(person=caller.id)
    return caller


def _caller(
    request: Request,
    database: TheDatabase,
    settings: TheSettings,
    _: Annotated[object, Security(_documented)],
) -> Person | Member:
    return authenticated(request, database, settings)


Caller = Annotated[Person | Member, Depends(_caller)]
"""Whoever it is."""


def _person_of(caller: Person | Member, role: PersonRole) -> Person:
    if not isinstance(caller, Person) or not caller.at_least(role):
        raise Forbidden(needs=role)
    return caller


# What follows only looks at who was recognised, which is not worth a change of threads.
async def _admin(caller: Caller) -> Person:
    return _person_of(caller, "admin")


async def _operator(caller: Caller) -> Person:
    return _person_of(caller, "operator")


async def _auditor(caller: Caller) -> Person:
    return _person_of(caller, "auditor")


def _member_of_any(caller: Person | Member) -> Member:
    if not isinstance(caller, Member):
        raise Forbidden(needs="client")
    return caller


async def _any_member(caller: Caller, database: TheDatabase) -> Member:
    return await _once(_member_of_any(caller), database)


async def _member_of(fid: FederationId, caller: Caller, database: TheDatabase) -> Member:
    member = _member_of_any(caller)
    if member.federation_id != fid:
        raise NotFound
    return await _once(member, database)


async def _once(member: Member, database: Database) -> Member:
    """Let a signed POST in once.

    GET shows what is the caller's own, and PUT of the same bytes changes nothing: these may be repeated.
    """
    if member.public_key is not None and member.post is not None:
        await to_thread.run_sync(nonces.use, database, member.public_key, member.post)
    return member


async def _caller_about(fid: FederationId, cid: ClientId, caller: Caller) -> Person | Member:
    """Hide all clients but itself from a client."""
    if isinstance(caller, Member) and (caller.federation_id, caller.client_id) != (fid, cid):
        raise NotFound
    return caller


_CallerAbout = Annotated[Person | Member, Depends(_caller_about)]


async def _admin_of_client(caller: _CallerAbout) -> Person:
    return _person_of(caller, "admin")


async def _auditor_of_client(caller: _CallerAbout) -> Person:
    return _person_of(caller, "auditor")


async def _reader(fid: FederationId, caller: Caller) -> Person | Member:
    if isinstance(caller, Member) and caller.federation_id != fid:
        raise NotFound
    return caller


AsAdmin = Annotated[Person, Depends(_admin)]
"""An admin."""

AsOperator = Annotated[Person, Depends(_operator)]
"""An operator or an admin."""

AsAuditor = Annotated[Person, Depends(_auditor)]
"""Any person."""

AsAdminOfClient = Annotated[Person, Depends(_admin_of_client)]
"""An admin; a client finds nobody but itself in the path."""

AsAuditorOfClient = Annotated[Person, Depends(_auditor_of_client)]
"""Any person; a client finds nobody but itself in the path."""

AnyMember = Annotated[Member, Depends(_any_member)]
"""A client, of whichever federation."""

AsMember = Annotated[Member, Depends(_member_of)]
"""A client of the federation in the path; another's is not found."""

AsReader = Annotated[Person | Member, Depends(_reader)]
"""Any person, or a client of the federation in the path."""
