"""Look up the names behind the ids in entries of the audit log, which stores ids alone."""

from __future__ import annotations

from collections.abc import Set

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.db.tables.federations import ClientRow, EnrolmentTokenRow, FederationRow, PersonToken
from coordinator.db.tables.identity import AuditRow
from schemas.messages.tokens import AuditName


def names_of(session: Session, ids: Set[str]) -> dict[str, AuditName]:
    """Return the names of clients, enrolment tokens, federations and people's tokens, by id.

    Names are the present ones; that of a removed federation is the log's. Clients and enrolment tokens of a
    removed federation, and people of an identity provider, have none.
    """
    people = select(PersonToken.id, PersonToken.name).where(PersonToken.id.in_(ids))
    federations = select(FederationRow.id, FederationRow.name).where(FederationRow.id.in_(ids))
    names = {
        row_id: AuditName(name=name)
        for query in (people, federations)
        for row_id, name in session.execute(query)
    }
    if absent := {row_id for row_id in ids - names.keys() if row_id.startswith("fed_")}:
        subject = AuditRow.document["subject"].as_string()
        removals = select(subject, AuditRow.document["reason"].as_string()).where(
            AuditRow.document["event"].as_string() == "federation-removed", subject.in_(absent)
        )
        names |= {row_id: AuditName(name=name) for row_id, name in session.execute(removals)}
    for row, name in ((ClientRow, ClientRow.name), (EnrolmentTokenRow, EnrolmentTokenRow.client_name)):
        members = select(row.id, name, FederationRow.name).join(
            FederationRow, FederationRow.id == row.federation_id
        )
        for row_id, text, federation in session.execute(members.where(row.id.in_(ids))):
            names[row_id] = AuditName(name=text, federation=federation)
    return names
