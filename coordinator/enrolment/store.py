"""Load and store tokens, keys and members."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time
from coordinator.db.ids import new_id
from coordinator.db.tables.federations import ClientRow, EnrolmentTokenRow, PersonToken
from coordinator.db.tables.identity import ClientKeyRow
from coordinator.db.upsert import insert_new
from coordinator.enrolment import names
from coordinator.errors import NotFound
from schemas.messages.enrolment import (
    Client,
    EnrolmentRequest,
    EnrolmentTokenRequest,
    TokenizerDigests,
    UnusedToken,
    UnusedTokenPage,
)
from schemas.messages.tokens import TokenPage, TokenRequest, TokenView


def any_person_token(session: Session) -> bool:
    return session.scalar(select(PersonToken.id).limit(1)) is not None


def add_person_token(session: Session, request: TokenRequest, digest: str) -> PersonToken:
    """Store a person's token.

    Raises:
        NameLooksAlike: another person's name resembles this one.
    """
    names.reserve(session, "person", request.name)
    now = database_time(session)
    row = PersonToken(
        id=new_id("tok"),
        role=request.role,
        name=request.name,
        token_hash=digest,
        created_at=now,
        expires_at=_expiry(now, request.expires_in_seconds),
        revoked_at=None,
    )
    session.add(row)
    return row


def person_token(session: Session, token_id: str) -> PersonToken:
    """Load a person's token.

    Raises:
        NotFound: no token has this id.
    """
    row = session.get(PersonToken, token_id)
    if row is None:
        raise NotFound
    return row


def revoke_person_token(session: Session, token_id: str) -> bool:
    """Revoke a person's token; return False if it was revoked before."""
    row = person_token(session, token_id)
    if row.revoked_at is not None:
        return False
    row.revoked_at = database_time(session)
    return True


def person_tokens(session: Session, *, after: str | None, limit: int) -> TokenPage:
    query = select(PersonToken).order_by(PersonToken.id).limit(limit + 1)
    if after is not None:
        query = query.where(PersonToken.id > after)
    rows = list(session.scalars(query))
    return TokenPage(
        items=[token_view(row) for row in rows[:limit]],
        next=rows[limit - 1].id if len(rows) > limit else None,
    )


def token_view(row: PersonToken) -> TokenView:
    return TokenView.model_validate(row, from_attributes=True)


def add_enrolment_token(
    session: Session, row_id: str, federation_id: str, request: EnrolmentTokenRequest, digest: str
) -> EnrolmentTokenRow:
    """Store an enrolment token, and reserve its names. The caller holds the federation's lock.

    Raises:
        ClientNameTaken: a client or an unused token has a name that resembles this one.
        NameLooksAlike: the organisation has another spelling in this federation.
    """
    names.reserve(session, "client", request.client_name, federation_id)
    if request.organisation is not None:
        names.reserve(session, "organisation", request.organisation, federation_id)
    now = database_time(session)
    row = EnrolmentTokenRow(
        id=row_id,
        federation_id=federation_id,
        client_name=request.client_name,
        organisation=request.organisation,
        token_hash=digest,
        created_at=now,
        expires_at=now + timedelta(seconds=request.expires_in_seconds),
        used_at=None,
        retry_key_hash=None,
        cidr=request.cidr,
        base_model=request.base_model,
        client_id=None,
    )
    session.add(row)
    return row


def enrolment_token(session: Session, row_id: str) -> EnrolmentTokenRow | None:
    # A row that was read before the lock may be outdated.
    return session.get(EnrolmentTokenRow, row_id, populate_existing=True)


def unused_tokens(session: Session, federation_id: str, *, after: str | None, limit: int) -> UnusedTokenPage:
    query = select(EnrolmentTokenRow).where(
        EnrolmentTokenRow.federation_id == federation_id, *names.is_unused(session)
    )
    if after is not None:
        query = query.where(EnrolmentTokenRow.id > after)
    rows = list(session.scalars(query.order_by(EnrolmentTokenRow.id).limit(limit + 1)))
    return UnusedTokenPage(
        items=[UnusedToken.model_validate(row, from_attributes=True) for row in rows[:limit]],
        next=rows[limit - 1].id if len(rows) > limit else None,
    )


def is_expired(session: Session, token: EnrolmentTokenRow) -> bool:
    return token.expires_at <= database_time(session)


def tokenizers_of(session: Session, federation_id: str, base_model: str) -> list[TokenizerDigests]:
    """Return the tokenizers that enrolled clients of a base model reported."""
    rows = session.scalars(
        select(ClientRow.profile).where(
            ClientRow.federation_id == federation_id,
            ClientRow.base_model == base_model,
            ClientRow.state == "enrolled",
        )
    )
    reported = [profile["tokenizer"] for profile in rows if profile.get("tokenizer") is not None]
    return [TokenizerDigests.model_validate(digests) for digests in reported]


def use_token(
    session: Session,
    token: EnrolmentTokenRow,
    request: EnrolmentRequest,
    *,
    credential_hash: str | None,
    repeat: str | None,
) -> ClientRow:
    """Use a one-time token and create its client; only a bearer client has a credential's hash."""
    now, client_id = database_time(session), new_id("cli")
    client = ClientRow(
        id=client_id,
        federation_id=token.federation_id,
        name=request.name,
        organisation=token.organisation,
        base_model=request.profile.base_model,
        profile=request.profile.model_dump(mode="json"),
        state="enrolled",
        credential_hash=credential_hash,
        enrolled_at=now,
        last_seen_at=now,
        revoked_at=None,
        bytes_up=0,
        bytes_down=0,
    )
    session.add(client)
    session.flush()
    token.used_at, token.retry_key_hash, token.client_id = now, repeat, client.id
    return client


def add_key(session: Session, public_key: str, client_id: str) -> bool:
    """Store a client's public key; return False if the key exists already."""
    values = {
        "public_key": public_key,
        "client_id": client_id,
        "created_at": database_time(session),
        "expires_at": None,
    }
    return insert_new(session, ClientKeyRow, values)


def expire_keys(session: Session, newest: ClientKeyRow, at: datetime, *, except_key: str) -> None:
    """Expire a key and the client's earlier keys at a time, unless they end sooner."""
    ends = update(ClientKeyRow).where(
        ClientKeyRow.client_id == newest.client_id,
        ClientKeyRow.created_at <= newest.created_at,
        ClientKeyRow.public_key != except_key,
        or_(ClientKeyRow.expires_at.is_(None), ClientKeyRow.expires_at > at),
    )
    session.execute(ends.values(expires_at=at))


def key_times_since(session: Session, client_id: str, now: datetime) -> list[datetime]:
    query = select(ClientKeyRow.created_at).where(
        ClientKeyRow.client_id == client_id, ClientKeyRow.created_at > now
    )
    return list(session.scalars(query.order_by(ClientKeyRow.created_at)))


def client_view(row: ClientRow, *, rounds: int) -> Client:
    return Client.model_validate(
        {
            "client_id": row.id,
            "name": row.name,
            "organisation": row.organisation,
            "profile": row.profile,
            "state": row.state,
            "identity": "key" if row.credential_hash is None else "bearer",
            "enrolled_at": row.enrolled_at,
            "last_seen_at": row.last_seen_at,
            "rounds": rounds,
            "bytes": {"up": row.bytes_up, "down": row.bytes_down},
        }
    )


def is_key_of(session: Session, key: str, client_id: str) -> bool:
    row = session.get(ClientKeyRow, key)
    if row is None or row.client_id != client_id:
        return False
    return row.expires_at is None or row.expires_at > database_time(session)


def key(session: Session, name: str) -> ClientKeyRow:
    """Load the current row of a public key.

    Raises:
        NotFound: the key is unknown.
    """
    row = session.get(ClientKeyRow, name, populate_existing=True)
    if row is None:
        raise NotFound
    return row


def client(session: Session, client_id: str) -> ClientRow:
    """Load a client.

    Raises:
        NotFound: no client has this id.
    """
    row = session.get(ClientRow, client_id)
    if row is None:
        raise NotFound
    return row


def _expiry(now: datetime, seconds: int | None) -> datetime | None:
    return None if seconds is None else now + timedelta(seconds=seconds)
