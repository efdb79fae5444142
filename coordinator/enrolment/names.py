"""Reserve names, so that no two of them can be taken for each other. The database decides races: each key of
a name has one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from sqlalchemy import ColumnElement, delete, or_, select, union_all
from sqlalchemy.orm import Session

from coordinator.db.engine import database_time
from coordinator.db.tables.federations import ClientRow, EnrolmentTokenRow, FederationRow, PersonToken
from coordinator.db.tables.identity import NameKeyRow
from coordinator.db.upsert import insert_new
from coordinator.errors import ClientNameTaken, Refusal
from schemas.messages.names import printable
from schemas.names.spelling import is_resembling, name_keys, normal_name, resemblance

Kind = Literal["client", "organisation", "federation", "person"]
EVERYWHERE: Final = ""
"""The scope of names of federations and people; others belong to a federation."""

_NOUNS: Final[Mapping[Kind, str]] = {
    "client": "name",
    "organisation": "organisation",
    "federation": "federation's name",
    "person": "person's name",
}
_COLUMNS = {
    "client": (ClientRow.name, EnrolmentTokenRow.client_name),
    "organisation": (ClientRow.organisation, EnrolmentTokenRow.organisation),
}


class NameLooksAlike(Refusal):
    """A name may be used again, but not in another spelling."""

    status, slug, title = (
        409,
        "name-looks-alike",
        "Another name in use can be taken for this one; write it in the same way, or choose another",
    )


def reserve(session: Session, kind: Kind, name: str, scope: str = EVERYWHERE) -> None:
    """Reserve a name in its normal form, until nothing uses it any more.

    One client has a name; organisations, federations and people may use theirs again in the same spelling.

    Raises:
        ClientNameTaken: a client or an unused token has a name that resembles this one.
        NameLooksAlike: a name of the other kinds has another spelling.
    """
    # Unique keys decide between concurrent requests: the first insert gets the name.
    if _insert(session, kind, name, scope):
        return
    spellings = set(_spellings(session, kind, name, scope))
    if kind != "client" and spellings == {name}:
        return
    for existing in _used_names(session, kind, scope):
        if is_resembling(existing, name) and (kind == "client" or normal_name(existing) != name):
            raise _refusal(kind, name, existing)
    # No name in use has these keys any more, so that the new name takes them over.
    stale = NameKeyRow.scope == scope, NameKeyRow.kind == kind, NameKeyRow.name.in_(spellings)
    session.execute(delete(NameKeyRow).where(*stale))
    if not _insert(session, kind, name, scope):  # another request was faster
        raise _refusal(kind, name, min(_spellings(session, kind, name, scope), default=name))


def expire_unused_tokens(session: Session, federation_id: str, client_name: str) -> list[str]:
    """Void the unused tokens of clients whose names resemble a name; return their ids."""
    unused = select(EnrolmentTokenRow).where(
        EnrolmentTokenRow.federation_id == federation_id, *is_unused(session)
    )
    rows = [row for row in session.scalars(unused) if is_resembling(row.client_name, client_name)]
    for row in rows:
        row.expires_at = database_time(session)
    return [row.id for row in rows]


def _insert(session: Session, kind: Kind, name: str, scope: str) -> bool:
    """Insert the keys of a name, in one order to avoid deadlocks; return False if one exists."""
    rows = [{"scope": scope, "kind": kind, "key": key, "name": name} for key in sorted(name_keys(name))]
    # A list: with a generator `all` would stop at the first key that exists.
    return all([insert_new(session, NameKeyRow, row) for row in rows])


def _spellings(session: Session, kind: Kind, name: str, scope: str) -> Iterable[str]:
    return session.scalars(
        select(NameKeyRow.name)
        .where(NameKeyRow.scope == scope, NameKeyRow.kind == kind, NameKeyRow.key.in_(name_keys(name)))
        .distinct()
    )


def _used_names(session: Session, kind: Kind, scope: str) -> Iterable[str]:
    """Return the names of a kind that rows have, except those of tokens that are no longer valid."""
    if kind == "federation":
        return session.scalars(select(FederationRow.name)).all()
    if kind == "person":
        valid = or_(PersonToken.expires_at.is_(None), PersonToken.expires_at > database_time(session))
        return session.scalars(select(PersonToken.name).where(PersonToken.revoked_at.is_(None), valid)).all()
    client_column, token_column = _COLUMNS[kind]
    clients = select(client_column).where(ClientRow.federation_id == scope)
    tokens = select(token_column).where(EnrolmentTokenRow.federation_id == scope, *is_unused(session))
    return [name for name in session.scalars(union_all(clients, tokens)) if name is not None]


def is_unused(session: Session) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of enrolment tokens that may still be used."""
    return EnrolmentTokenRow.used_at.is_(None), EnrolmentTokenRow.expires_at > database_time(session)


def _refusal(kind: Kind, name: str, existing: str) -> Refusal:
    shown = printable(existing)
    sentence = f"the {_NOUNS[kind]} {resemblance(name, existing)} {shown!r}, which is in use"
    if kind == "client":
        return ClientNameTaken(
            f"{sentence}; choose another, or set `replace` if only an unused token has it", taken=shown
        )
    return NameLooksAlike(f"{sentence}; write it as {shown!r}, or choose another", taken=shown)
