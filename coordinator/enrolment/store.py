"""The rows of credentials: person tokens, enrolment tokens, and the members they make."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Select, or_, select, update
from sqlalchemy.orm import Session

from coordinator.db.engine import now
from coordinator.db.ids import new_id
from coordinator.db.tables.federations import ClientRow, EnrolmentTokenRow, PersonToken
from coordinator.db.tables.identity import ClientKeyRow
from coordinator.db.upsert import insert_new
from coordinator.errors import NotFound
from schemas.messages.enrolment import Client, EnrolmentRequest, EnrolmentTokenRequest
from schemas.messages.tokens import TokenPage, TokenRequest, TokenView

_HAS_KEYS = "key:"  # stands before the client's id; no hash begins like this


def any_person_token(session: Session) -> bool:
    """Did anybody ever get a person's token?"""
    return session.scalar(select(PersonToken.id).limit(1)) is not None


def add_person_token(session: Session, request: TokenRequest, digest: str) -> PersonToken:
    """Keep a new person's token as its hash."""
    moment = now(session)
    row = PersonToken(
        id=new_id("tok"),
        role=request.role,
        name=request.name,
        token_hash=digest,
        created_at=moment,
        expires_at=_after(moment, request.expires_in_seconds),
        revoked_at=None,
    )
    session.add(row)
    return row


def person_token(session: Session, token_id: str) -> PersonToken:
    """Which person's token is this?

    Raises:
        NotFound: none.
    """
    row = session.get(PersonToken, token_id)
    if row is None:
        raise NotFound
    return row


def revoke_person_token(session: Session, token_id: str) -> bool:
    """End a person's token; False when it had ended before."""
    row = person_token(session, token_id)
    if row.revoked_at is not None:
        return False
    row.revoked_at = now(session)
    return True


def person_tokens(session: Session, *, after: str | None, limit: int) -> TokenPage:
    """Which person tokens are there, oldest first?"""
    query = select(PersonToken).order_by(PersonToken.id).limit(limit + 1)
    if after is not None:
        query = query.where(PersonToken.id > after)
    rows = list(session.scalars(query))
    return TokenPage(
        items=[token_view(row) for row in rows[:limit]],
        next=rows[limit - 1].id if len(rows) > limit else None,
    )


def token_view(row: PersonToken) -> TokenView:
    """Show a person's token without the token."""
    return TokenView.model_validate(row, from_attributes=True)


def is_name_taken(session: Session, fid: str, client_name: str) -> bool:
    """Is there a client of this name, or a token in somebody's hands that would make one?"""
    client = select(ClientRow.id).where(ClientRow.federation_id == fid, ClientRow.name == client_name)
    token = _unused(session, fid, client_name).limit(1)
    return session.scalar(client) is not None or session.scalar(token) is not None


def end_unused_tokens(session: Session, fid: str, client_name: str) -> list[str]:
    """End the tokens that would make a client of this name; which were they?"""
    rows = list(session.scalars(_unused(session, fid, client_name)))
    for row in rows:
        row.expires_at = now(session)
    return [row.id for row in rows]


def _unused(session: Session, fid: str, client_name: str) -> Select[EnrolmentTokenRow]:
    return select(EnrolmentTokenRow).where(
        EnrolmentTokenRow.federation_id == fid,
        EnrolmentTokenRow.client_name == client_name,
        EnrolmentTokenRow.used_at.is_(None),
        EnrolmentTokenRow.expires_at > now(session),
    )


def add_enrolment_token(
    session: Session, row_id: str, fid: str, request: EnrolmentTokenRequest, digest: str
) -> EnrolmentTokenRow:
    """Keep a new one-time token as its hash."""
    moment = now(session)
    row = EnrolmentTokenRow(
        id=row_id,
        federation_id=fid,
        client_name=request.client_name,
        organisation=request.organisation,
        token_hash=digest,
        created_at=moment,
        expires_at=moment + timedelta(seconds=request.expires_in_seconds),
        used_at=None,
        retry_key_hash=None,
        cidr=request.cidr,
        base_model=request.base_model,
        client_id=None,
    )
    session.add(row)
    return row


def enrolment_token(session: Session, row_id: str) -> EnrolmentTokenRow | None:
    """Which one-time token has this id? Seen as it is now."""
    return session.get(EnrolmentTokenRow, row_id, populate_existing=True)


def is_expired(session: Session, token: EnrolmentTokenRow) -> bool:
    """Is a one-time token past its life?"""
    return token.expires_at <= now(session)


def consume(
    session: Session,
    token: EnrolmentTokenRow,
    request: EnrolmentRequest,
    *,
    credential_hash: str | None,
    repeat: str | None,
) -> ClientRow:
    """Use a one-time token up: its client becomes a member; only a bearer client has a credential's hash."""
    moment, client_id = now(session), new_id("cli")
    client = ClientRow(
        id=client_id,
        federation_id=token.federation_id,
        name=request.name,
        organisation=token.organisation,
        base_model=request.profile.base_model,
        profile=request.profile.model_dump(mode="json"),
        state="enrolled",
        credential_hash=credential_hash or _HAS_KEYS + client_id,
        enrolled_at=moment,
        last_seen_at=moment,
        revoked_at=None,
        bytes_up=0,
        bytes_down=0,
    )
    session.add(client)
    session.flush()
    token.used_at, token.retry_key_hash, token.client_id = moment, repeat, client.id
    return client


def add_key(session: Session, key: str, client_id: str) -> bool:
    """Give a client a public key; False when somebody has it already."""
    values = {"public_key": key, "client_id": client_id, "created_at": now(session), "expires_at": None}
    return insert_new(session, ClientKeyRow, values)


def end_keys(session: Session, newest: ClientKeyRow, at: datetime, *, but: str) -> None:
    """End a key and those that its client had before it, at a moment unless they end sooner."""
    ends = update(ClientKeyRow).where(
        ClientKeyRow.client_id == newest.client_id,
        ClientKeyRow.created_at <= newest.created_at,
        ClientKeyRow.public_key != but,
        or_(ClientKeyRow.expires_at.is_(None), ClientKeyRow.expires_at > at),
    )
    session.execute(ends.values(expires_at=at))


def keys_since(session: Session, client_id: str, moment: datetime) -> list[datetime]:
    """When did a client get its keys since a moment, oldest first?"""
    query = select(ClientKeyRow.created_at).where(
        ClientKeyRow.client_id == client_id, ClientKeyRow.created_at > moment
    )
    return list(session.scalars(query.order_by(ClientKeyRow.created_at)))


def client_view(row: ClientRow, *, rounds: int) -> Client:
    """Show a client; `rounds` is how many it delivered an update in."""
    return Client.model_validate(
        {
            "client_id": row.id,
            "name": row.name,
            "organisation": row.organisation,
            "profile": row.profile,
            "state": row.state,
            "identity": "key" if has_keys(row.credential_hash) else "bearer",
            "enrolled_at": row.enrolled_at,
            "last_seen_at": row.last_seen_at,
            "rounds": rounds,
            "bytes": {"up": row.bytes_up, "down": row.bytes_down},
        }
    )


def has_keys(credential_hash: str) -> bool:
    """Say whether a client signs its requests; the others have bearer credentials."""
    return credential_hash.startswith(_HAS_KEYS)


def is_key_of(session: Session, key: str, client_id: str) -> bool:
    """Does this public key count for this client now?"""
    row = session.get(ClientKeyRow, key)
    if row is None or row.client_id != client_id:
        return False
    return row.expires_at is None or row.expires_at > now(session)


def key(session: Session, name: str) -> ClientKeyRow:
    """Which row has this public key, as it is now?

    Raises:
        NotFound: none.
    """
    row = session.get(ClientKeyRow, name, populate_existing=True)
    if row is None:
        raise NotFound
    return row


def client(session: Session, client_id: str) -> ClientRow:
    """Which client is this?

    Raises:
        NotFound: none.
    """
    row = session.get(ClientRow, client_id)
    if row is None:
        raise NotFound
    return row


def _after(moment: datetime, seconds: int | None) -> datetime | None:
    return None if seconds is None else moment + timedelta(seconds=seconds)
