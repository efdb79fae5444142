"""Routes of people's tokens and of the audit log."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from coordinator.auth import tokens
from coordinator.auth.authentication import hash_of, still_person
from coordinator.auth.permissions import AsAdmin, AsAuditor
from coordinator.enrolment import store
from coordinator.enrolment.names import NameLooksAlike
from coordinator.errors import AuthMissing, Forbidden, Invalid, JsonMalformed, NotFound
from coordinator.http.dependencies import TheDatabase, TheServerKey
from coordinator.http.json_body import json_body, takes
from coordinator.http.params import DEFAULT_LIMIT, After, Limit, TokenId
from coordinator.http.problems import answers
from coordinator.storage import audit_log
from coordinator.storage.server_key import ServerKey
from schemas.messages.tokens import AuditHead, AuditPage, NewToken, TokenPage, TokenRequest, TokenView

router = APIRouter(tags=["enrolment"])

_CURSOR = re.compile(r"[0-9]{1,9}")


@router.post(
    "/v1/tokens",
    status_code=201,
    openapi_extra=takes(TokenRequest, example={"role": "auditor", "name": "dpo@hospital-a"}),
    responses=answers(JsonMalformed, AuthMissing, Forbidden, NameLooksAlike, Invalid),
)
def make_token(
    person: AsAdmin,
    request: Annotated[TokenRequest, Depends(json_body(TokenRequest))],
    database: TheDatabase,
    response: Response,
) -> NewToken:
    """Create a person's token; it is shown once."""
    # The response has a secret.
    response.headers["Cache-Control"] = "no-store"
    token = tokens.new_person_token(request.role)
    with database.write() as session:
        still_person(session, person)
        row = store.add_person_token(session, request, hash_of(token))
        audit_log.append(session, "person-token-made", actor=person.id, subject=row.id)
        return NewToken(id=row.id, role=request.role, name=row.name, token=token, expires_at=row.expires_at)


@router.get("/v1/tokens", responses=answers(AuthMissing, Forbidden))
def list_tokens(
    _: AsAdmin, database: TheDatabase, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> TokenPage:
    """List people's tokens, oldest first, without the secrets."""
    with database.read() as session:
        return store.person_tokens(session, after=after, limit=limit)


@router.get("/v1/tokens/{token_id}", responses=answers(AuthMissing, Forbidden, NotFound))
def show_token(_: AsAdmin, token_id: TokenId, database: TheDatabase) -> TokenView:
    """Return a person's token, without the secret."""
    with database.read() as session:
        return store.token_view(store.person_token(session, token_id))


@router.delete("/v1/tokens/{token_id}", status_code=204, responses=answers(AuthMissing, Forbidden, NotFound))
def revoke_token(person: AsAdmin, token_id: TokenId, database: TheDatabase) -> None:
    """Revoke a person's token, effective at once."""
    with database.write() as session:
        still_person(session, person)
        if store.revoke_person_token(session, token_id):
            audit_log.append(session, "person-token-revoked", actor=person.id, subject=token_id)


@router.get("/v1/audit", tags=["about"], responses=answers(AuthMissing, Forbidden, Invalid))
def show_audit(
    _: AsAuditor,
    database: TheDatabase,
    key: TheServerKey,
    after: After = None,
    limit: Limit = DEFAULT_LIMIT,
) -> AuditPage:
    """List audited actions, oldest first: tokens, enrolments, revocations, federations and rounds.

    Each entry contains the hash of the previous one; `head` names the last entry, signed with this server's
    key.
    """
    if after is not None and not _CURSOR.fullmatch(after):
        raise Invalid("after: not a cursor of the audit log; use `next` of the previous page", field="after")
    with database.read() as session:
        return audit_log.page(session, after=int(after or 0), limit=limit, head=_head(session, key))


def _head(session: Session, key: ServerKey) -> AuditHead | None:
    last = audit_log.last(session)
    if last is None:
        return None
    number, digest, now = last
    head = AuditHead(number=number, hash=digest, at=now, signature="")
    # A stored signed head proves later what was logged.
    signature = key.sign("tessera-audit-v1", head.model_dump(mode="json"))
    return head.model_copy(update={"signature": signature})
