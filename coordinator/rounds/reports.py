"""The route and the contents of the signed report of a federation, for an auditor."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from fastapi import APIRouter
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from coordinator.auth.permissions import AsAuditor
from coordinator.db.engine import database_time
from coordinator.db.tables.federations import (
    ClientRow,
    EnrolmentTokenRow,
    ParticipationRow,
    RoundRow,
    SignatureRow,
    UpdateRow,
)
from coordinator.db.tables.identity import AuditRow, ManifestRow, RosterRow
from coordinator.enrolment import roster
from coordinator.errors import AuthMissing, Forbidden, NotFound
from coordinator.federations import claims
from coordinator.federations.store import federation, plan_of
from coordinator.http.dependencies import TheDatabase, TheServerKey, TheSettings
from coordinator.http.params import FederationId
from coordinator.http.problems import answers
from coordinator.rounds.lifecycle import Participation, shown_state
from coordinator.rounds.manifests import plan_bytes
from coordinator.rounds.scores import mixing_verdicts
from coordinator.rounds.store import state_of
from coordinator.rounds.transitions import federation_state
from coordinator.rounds.views import participation_state
from coordinator.storage import audit_log
from coordinator.storage.server_key import ServerKey
from schemas.identity.keys import thumbprint
from schemas.messages.enrolment import Traffic
from schemas.messages.reports import Report, ReportMember, ReportMixing, ReportParticipation, ReportRound
from schemas.wire.digests import digest_of

router = APIRouter(prefix="/v1/federations/{fid}", tags=["federations"])


@router.get("/report", responses=answers(AuthMissing, Forbidden, NotFound))
def report(
    _: AsAuditor, federation_id: FederationId, database: TheDatabase, settings: TheSettings, key: TheServerKey
) -> Report:
    """Return the signed record of a federation: plan, members, rounds, privacy, audit entries.

    `tessera report verify` checks it offline. It is the coordinator's word: the manifests of silos and stored
    heads of the audit log are the evidence to compare it with.
    """
    with database.read() as session:
        return signed_report(session, federation_id, coordinator=settings.name, key=key)


def signed_report(session: Session, federation_id: str, *, coordinator: str, key: ServerKey) -> Report:
    """Return the report of a federation at this moment.

    Raises:
        NotFound: no federation has this id.
    """
    row, now = federation(session, federation_id), database_time(session)
    plan, listed, logged = plan_bytes(row.plan), roster.newest(session, row.id), audit_log.last(session)
    unsigned = Report(
        coordinator=coordinator,
        signing_key=key.public,
        issued_at=now,
        federation=row.id,
        name=row.name,
        state=federation_state(row),
        created_at=row.created_at,
        finished_at=row.finished_at,
        plan=plan.decode(),
        plan_digest=digest_of(plan),
        claims=claims.stored_plan_claims(plan_of(row)),
        members=_members(session, row.id),
        roster_version=listed.version if listed is not None else 0,
        roster_hash=listed.hash if listed is not None else None,
        rounds=_rounds(session, row.id),
        audit=_audit(session, row.id),
        audit_number=logged[0] if logged is not None else 0,
        audit_hash=logged[1] if logged is not None else None,
        signature="",
    )
    signature = key.sign("tessera-report-v1", unsigned.model_dump(mode="json"))
    return unsigned.model_copy(update={"signature": signature})


def _members(session: Session, federation_id: str) -> list[ReportMember]:
    sketches = (
        select(SignatureRow.client_id, func.max(SignatureRow.epsilon).label("epsilon"))
        .where(SignatureRow.federation_id == federation_id)
        .group_by(SignatureRow.client_id)
        .subquery()
    )
    training = (
        select(UpdateRow.client_id, func.max(UpdateRow.training_epsilon).label("epsilon"))
        .join(RoundRow, RoundRow.id == UpdateRow.round_id)
        .where(RoundRow.federation_id == federation_id)
        .group_by(UpdateRow.client_id)
        .subquery()
    )
    rows = session.execute(
        select(ClientRow, sketches.c.epsilon, training.c.epsilon)
        .outerjoin(sketches, sketches.c.client_id == ClientRow.id)
        .outerjoin(training, training.c.client_id == ClientRow.id)
        .where(ClientRow.federation_id == federation_id)
        .order_by(ClientRow.id)
    )
    keys = _newest_keys(session, federation_id)
    return [
        ReportMember(
            client=client.id,
            name=client.name,
            organisation=client.organisation,
            base_model=client.base_model,
            key=keys.get(client.id),
            enrolled_at=client.enrolled_at,
            revoked_at=client.revoked_at,
            bytes=Traffic(up=client.bytes_up, down=client.bytes_down),
            epsilon=_number(sketch_epsilon),
            training_epsilon=_number(training_epsilon),
        )
        for client, sketch_epsilon, training_epsilon in rows
    ]


def _number(epsilon: float | None) -> str | None:
    # As text, since signed documents have no fractions.
    return repr(float(epsilon)) if epsilon is not None else None


def _newest_keys(session: Session, federation_id: str) -> dict[str, str]:
    """Return the thumbprint of each client's last key: the roster has none after a revocation."""
    entries = session.execute(
        select(RosterRow.client_id, RosterRow.document)
        .where(RosterRow.federation_id == federation_id)
        .order_by(RosterRow.version)
    )
    return {
        client_id: thumbprint(entry["public_key"])
        for client_id, entry in entries
        if entry["public_key"] is not None
    }


def _rounds(session: Session, federation_id: str) -> list[ReportRound]:
    joined, mixing = _participations(session, federation_id), mixing_verdicts(session, federation_id)
    rows = session.scalars(
        select(RoundRow).where(RoundRow.federation_id == federation_id).order_by(RoundRow.number)
    )
    return [
        ReportRound(
            round=row.number,
            state=state_of(row),
            reason=row.reason,
            opened_at=row.opened_at,
            ended_at=row.ended_at,
            counted=[
                client_id
                for client_id, stored_state, _ in joined[row.id]
                # The stored state: a client that was revoked later was counted all the same.
                if row.state == "published" and stored_state == "arrived"
            ],
            bytes=Traffic(
                up=sum(view.bytes.up for _, _, view in joined[row.id]),
                down=sum(view.bytes.down for _, _, view in joined[row.id]),
            ),
            mixing=ReportMixing(**mixing[row.number]) if row.number in mixing else None,
            participations=[view for _, _, view in joined[row.id]],
        )
        for row in rows
    ]


def _participations(
    session: Session, federation_id: str
) -> dict[int, list[tuple[str, str, ReportParticipation]]]:
    """Return (client id, stored state, view) of all participations, by the id of their round."""
    rows = session.execute(
        select(
            ParticipationRow,
            RoundRow.ended_at,
            ClientRow.revoked_at,
            UpdateRow.digest,
            UpdateRow.reject_reason,
            ManifestRow.hash,
        )
        .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
        .join(ClientRow, ClientRow.id == ParticipationRow.client_id)
        .outerjoin(
            UpdateRow,
            (UpdateRow.round_id == RoundRow.id) & (UpdateRow.client_id == ParticipationRow.client_id),
        )
        .outerjoin(
            ManifestRow,
            (ManifestRow.client_id == ParticipationRow.client_id)
            & (ManifestRow.round_number == RoundRow.number),
        )
        .where(RoundRow.federation_id == federation_id)
        .order_by(ParticipationRow.round_id, ParticipationRow.client_id)
    )
    joined: dict[int, list[tuple[str, str, ReportParticipation]]] = defaultdict(list)
    for part, ended_at, revoked_at, update, refused, manifest in rows:
        view = ReportParticipation(
            client=part.client_id,
            state=_shown(part.state, revoked_at, ended_at),
            bytes=Traffic(up=part.bytes_up, down=part.bytes_down),
            update=update,
            manifest=manifest,
            reject_reason=part.reject_reason or refused,
        )
        joined[part.round_id].append((part.client_id, part.state, view))
    return joined


def _shown(stored: str, revoked_at: datetime | None, ended_at: datetime | None) -> str:
    return shown_state(Participation(participation_state(stored), revoked_at, ended_at))


def _audit(session: Session, federation_id: str) -> list[dict[str, object]]:
    """Return the audit entries about a federation, its clients and enrolment tokens, in order."""
    subject = AuditRow.document["subject"].as_string()
    actor = AuditRow.document["actor"].as_string()
    clients = select(ClientRow.id).where(ClientRow.federation_id == federation_id)
    tokens = select(EnrolmentTokenRow.id).where(EnrolmentTokenRow.federation_id == federation_id)
    is_of_federation = or_(
        subject == federation_id, subject.in_(clients), subject.in_(tokens), actor.in_(tokens)
    )
    return list(session.scalars(select(AuditRow.document).where(is_of_federation).order_by(AuditRow.number)))
