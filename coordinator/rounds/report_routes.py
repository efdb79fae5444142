"""Route of the signed report that an auditor keeps."""

from __future__ import annotations

from fastapi import APIRouter

from coordinator.auth.permissions import AsAuditor
from coordinator.errors import AuthMissing, Forbidden, NotFound
from coordinator.http.dependencies import TheDatabase, TheServerKey, TheSettings
from coordinator.http.params import FederationId
from coordinator.http.problems import answers
from coordinator.rounds.reports import signed_report
from schemas.messages.reports import Report

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
