"""Look up the names behind the ids in entries of the audit log, which stores ids alone."""

from __future__ import annotations

from collections.abc import Set

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.db.tables.federations import ClientRow, EnrolmentTokenRow, FederationRow, PersonToken
from schemas.messages.tokens import AuditName


def names_of(session: Session, ids: Set[str], *, with_people: bool) -> dict[str, AuditName]:
    """Return the present names of clients, enrolment tokens, federations and people's tokens, by id.

    Args:
        with_people: whether to name people's tokens, which only admins may list.

    What was removed, and people of an identity provider, have none.
    """
    people = select(PersonToken.id, PersonToken.name).where(PersonToken.id.in_(ids))
    federations = select(FederationRow.id, FederationRow.name).where(FederationRow.id.in_(ids))
    names = {
        row_id: AuditName(name=name)
        for query in ((people, federations) if with_people else (federations,))
        for row_id, name in session.execute(query)
    }
    for row, name in ((ClientRow, ClientRow.name), (EnrolmentTokenRow, EnrolmentTokenRow.client_name)):
        members = select(row.id, name, FederationRow.name).join(
            FederationRow, FederationRow.id == row.federation_id
        )
        for row_id, text, federation in session.execute(members.where(row.id.in_(ids))):
            names[row_id] = AuditName(name=text, federation=federation)
    return names
