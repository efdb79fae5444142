"""The rows of credentials: person tokens, enrolment tokens, and the members they make."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from coordinator.database import now
from coordinator.errors import NotFound
from coordinator.ids import new_id
from coordinator.tables import ClientRow, EnrolmentTokenRow, PersonToken
from schemas.messages.enrolment import Client, EnrolmentRequest, EnrolmentTokenRequest
from schemas.messages.people import TokenPage, TokenRequest, TokenView

_SEEN_AGAIN_AFTER = timedelta(seconds=15)


def person_token_by_hash(session: Session, digest: str) -> PersonToken | None:
    """Whose token has this hash?"""
    return session.scalar(select(PersonToken).where(PersonToken.token_hash == digest))


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


def revoke_person_token(session: Session, token_id: str) -> None:
    """End a person's token; a second time changes nothing."""
    row = person_token(session, token_id)
    if row.revoked_at is None:
        row.revoked_at = now(session)


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
    token = select(EnrolmentTokenRow.id).where(
        EnrolmentTokenRow.federation_id == fid,
        EnrolmentTokenRow.client_name == client_name,
        EnrolmentTokenRow.used_at.is_(None),
        EnrolmentTokenRow.expires_at > now(session),
    )
    return session.scalar(client) is not None or session.scalar(token.limit(1)) is not None


def add_enrolment_token(
    session: Session, fid: str, request: EnrolmentTokenRequest, digest: str
) -> EnrolmentTokenRow:
    """Keep a new one-time token as its hash."""
    moment = now(session)
    row = EnrolmentTokenRow(
        id=new_id("enr"),
        federation_id=fid,
        client_name=request.client_name,
        organisation=request.organisation,
        token_hash=digest,
        created_at=moment,
        expires_at=moment + timedelta(seconds=request.expires_in_seconds),
        used_at=None,
        retry_key_hash=None,
        client_id=None,
    )
    session.add(row)
    return row


def enrolment_token_by_hash(session: Session, digest: str) -> EnrolmentTokenRow | None:
    """Which one-time token has this hash? Seen as it is now."""
    query = select(EnrolmentTokenRow).where(EnrolmentTokenRow.token_hash == digest)
    return session.scalar(query.execution_options(populate_existing=True))


def is_expired(session: Session, token: EnrolmentTokenRow) -> bool:
    """Is a one-time token past its life?"""
    return token.expires_at <= now(session)


def consume(
    session: Session, token: EnrolmentTokenRow, request: EnrolmentRequest, digest: str, repeat: str | None
) -> ClientRow:
    """Use a one-time token up: its client becomes a member, with the hash of its credential."""
    moment = now(session)
    client = ClientRow(
        id=new_id("cli"),
        federation_id=token.federation_id,
        name=request.name,
        organisation=token.organisation,
        base_model=request.profile.base_model,
        profile=request.profile.model_dump(mode="json"),
        state="enrolled",
        credential_hash=digest,
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


def client_view(row: ClientRow, *, rounds: int) -> Client:
    """Show a client; `rounds` is how many it delivered an update in."""
    return Client.model_validate(
        {
            "client_id": row.id,
            "name": row.name,
            "organisation": row.organisation,
            "profile": row.profile,
            "state": row.state,
            "enrolled_at": row.enrolled_at,
            "last_seen_at": row.last_seen_at,
            "rounds": rounds,
            "bytes": {"up": row.bytes_up, "down": row.bytes_down},
        }
    )


def client_by_hash(session: Session, digest: str) -> ClientRow | None:
    """Whose credential has this hash?"""
    return session.scalar(select(ClientRow).where(ClientRow.credential_hash == digest))


def is_enrolled(session: Session, client_id: str) -> bool:
    """Is this client a member still?"""
    state = session.scalar(select(ClientRow.state).where(ClientRow.id == client_id))
    return state == "enrolled"


def is_unseen(session: Session, last_seen_at: datetime | None) -> bool:
    """Is it long enough since a client was noted as seen?"""
    return last_seen_at is None or last_seen_at <= now(session) - _SEEN_AGAIN_AFTER


def note_seen(session: Session, client_id: str) -> None:
    """Write down that a client is here now, unless another request just did."""
    moment = now(session)
    stale = or_(ClientRow.last_seen_at.is_(None), ClientRow.last_seen_at <= moment - _SEEN_AGAIN_AFTER)
    session.execute(update(ClientRow).where(ClientRow.id == client_id, stale).values(last_seen_at=moment))


def _after(moment: datetime, seconds: int | None) -> datetime | None:
    return None if seconds is None else moment + timedelta(seconds=seconds)
