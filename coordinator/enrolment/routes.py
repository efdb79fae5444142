"""Routes that enrol clients: enrolment tokens, and the enrolments that use them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy.orm import Session

from coordinator.auth import failure_limit, tokens
from coordinator.auth.authentication import hash_of, still_person
from coordinator.auth.permissions import AsOperator
from coordinator.db.engine import Database, database_time
from coordinator.db.federation_lock import lock_federation
from coordinator.db.ids import new_id
from coordinator.db.tables.federations import ClientRow, EnrolmentTokenRow
from coordinator.enrolment import names, proof_of_possession, roster, store
from coordinator.enrolment.eligibility import check_eligible, check_tokenizer
from coordinator.enrolment.failure_delay import ENROLMENT_BYTES, enrolment_body
from coordinator.enrolment.names import NameLooksAlike
from coordinator.errors import (
    CapabilityMissing,
    ClientNameTaken,
    EnrolmentTokenInvalid,
    EnrolmentTokenMisused,
    FederationStateConflict,
    Forbidden,
    Invalid,
    JsonMalformed,
    NotFound,
    ProtocolVersionUnsupported,
    RateLimited,
    TokenizerMismatch,
    WeakPublicKey,
)
from coordinator.http.dependencies import TheDatabase, TheServerKey, TheSettings
from coordinator.http.json_body import json_body, takes
from coordinator.http.params import FederationId
from coordinator.http.problems import answers
from coordinator.observability.fault_points import may_crash
from coordinator.observability.logs import bind, logger
from coordinator.storage import audit_log, event_log
from coordinator.storage.server_key import ServerKey
from coordinator.strategies.opening import open_plan
from schemas import PROTOCOL_VERSION
from schemas.identity.enrolment_token import EnrolmentTokenText, TokenMalformed, read
from schemas.messages.enrolment import Enrolment, EnrolmentRequest, EnrolmentToken, EnrolmentTokenRequest
from schemas.messages.federations import FederationPlan
from schemas.names.spelling import normal_name

router = APIRouter(tags=["enrolment"])
log = logger(__name__)

_EXAMPLE_ENROLMENT = {
    "token": "tsr1_...",
    "name": "hospital-a",
    "public_key": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    "nonce": "...",
    "proof": "...",
    "profile": {
        "architecture": "LlamaForCausalLM",
        "base_model": "tiny-s-3f0c9a1b2c3d",
        "hidden_size": 96,
        "layers": 4,
        "agent_version": "0.2.0",
        "protocol_version": PROTOCOL_VERSION,
    },
}


@router.post(
    "/v1/federations/{fid}/enrolment-tokens",
    status_code=201,
    openapi_extra=takes(EnrolmentTokenRequest, example={"client_name": "hospital-a"}),
    responses=answers(
        JsonMalformed, NotFound, FederationStateConflict, ClientNameTaken, NameLooksAlike, Invalid
    ),
)
def make_enrolment_token(
    person: AsOperator,
    federation_id: FederationId,
    request: Annotated[EnrolmentTokenRequest, Depends(json_body(EnrolmentTokenRequest))],
    database: TheDatabase,
    key: TheServerKey,
    response: Response,
) -> EnrolmentToken:
    """Create a one-time token for one client; it is shown once."""
    response.headers["Cache-Control"] = "no-store"
    with database.write() as session:
        federation = lock_federation(session, federation_id)
        still_person(session, person)
        if federation.state == "finished":
            raise FederationStateConflict(state=federation.state)
        if request.replace:
            for token_id in names.expire_unused_tokens(session, federation_id, request.client_name):
                audit_log.append(session, "enrolment-token-ended", actor=person.id, subject=token_id)
        row_id = new_id(tokens.ENROLMENT_PREFIX.rstrip("_"))
        token = tokens.new_enrolment_token(row_id, key.id)
        row = store.add_enrolment_token(session, row_id, federation_id, request, hash_of(token.secret))
        audit_log.append(session, "enrolment-token-made", actor=person.id, subject=row_id)
        return EnrolmentToken(token=str(token), expires_at=row.expires_at)


@router.post(
    "/v1/enrolments",
    status_code=201,
    openapi_extra=takes(EnrolmentRequest, example=_EXAMPLE_ENROLMENT, limit=ENROLMENT_BYTES),
    responses=answers(
        JsonMalformed,
        EnrolmentTokenInvalid,
        Forbidden,
        FederationStateConflict,
        Invalid,
        TokenizerMismatch,
        WeakPublicKey,
        ProtocolVersionUnsupported,
        CapabilityMissing,
        RateLimited,
    )
    | {200: {"model": Enrolment, "description": "Repeated request: the same answer as before"}},
)
def enrol(
    request: Annotated[EnrolmentRequest, Depends(enrolment_body())],
    caller: Request,
    database: TheDatabase,
    settings: TheSettings,
    key: TheServerKey,
    response: Response,
) -> Enrolment:
    """Enrol with a one-time token and a public key, or as a bearer client where the plan allows it."""
    if request.profile.protocol_version != PROTOCOL_VERSION:
        raise ProtocolVersionUnsupported(supported=[PROTOCOL_VERSION])
    try:
        enrolment, is_new = _enrol(request, caller, database, key)
    except EnrolmentTokenInvalid as refused:
        address = caller.client.host if caller.client is not None else ""
        failure_limit.count_failure(
            database, address, settings.failed_enrolments_per_minute, refused, request.name
        )
        raise
    response.status_code = 201 if is_new else 200
    response.headers["Cache-Control"] = "no-store"
    return enrolment


def _enrol(
    request: EnrolmentRequest, caller: Request, database: Database, key: ServerKey
) -> tuple[Enrolment, bool]:
    """Check and admit a client; return its enrolment, and whether it is new."""
    text = _read_token(request)
    # Checked without a lock first: an invalid request must not hold up the federation.
    with database.read() as session:
        _check_use(session, _load_token(session, text), request, caller)
        proof_of_possession.check(request, text, key, database_time(session))
    with database.write() as session:
        result = _admit(session, request, text, caller)
        may_crash("enrolment-written")
    may_crash("enrolment-committed")
    return result


def _admit(
    session: Session, request: EnrolmentRequest, text: EnrolmentTokenText, caller: Request
) -> tuple[Enrolment, bool]:
    token = _usable_token(session, request, text, caller)
    credential = tokens.credential_for(request)
    if token.client_id is not None:
        return _enrolment(token.client_id, token.federation_id, credential), False
    client = admit_member(session, token, request, credential)
    return _enrolment(client.id, client.federation_id, credential), True


def _read_token(request: EnrolmentRequest) -> EnrolmentTokenText:
    try:
        return read(request.token)
    except TokenMalformed as error:
        raise EnrolmentTokenInvalid from error


def _load_token(session: Session, text: EnrolmentTokenText) -> EnrolmentTokenRow:
    """Load the token with this secret.

    Raises:
        EnrolmentTokenInvalid: no token has it.
    """
    row = store.enrolment_token(session, tokens.ENROLMENT_PREFIX + text.id)
    # One error for both: it must not show whether the id exists.
    if row is None or not tokens.has_secret(text, row.token_hash):
        raise EnrolmentTokenInvalid
    return row


def _usable_token(
    session: Session, request: EnrolmentRequest, text: EnrolmentTokenText, caller: Request
) -> EnrolmentTokenRow:
    """Lock the token's federation and load the token again, so that it is used once."""
    unlocked = _load_token(session, text)
    # The lock orders two requests with one token: the second sees that it is used.
    lock_federation(session, unlocked.federation_id)
    token = store.enrolment_token(session, unlocked.id)
    if token is None:
        raise EnrolmentTokenInvalid
    _check_use(session, token, request, caller)
    return token


def _check_use(
    session: Session, token: EnrolmentTokenRow, request: EnrolmentRequest, caller: Request
) -> None:
    """Raise EnrolmentTokenMisused unless name, time, network and repetition allow this use."""
    if normal_name(token.client_name) != request.name:
        raise EnrolmentTokenMisused(token.id, "another name")
    if store.is_expired(session, token):
        raise EnrolmentTokenMisused(token.id, "expired")
    if token.cidr is not None and not _is_within(caller, token.cidr):
        raise EnrolmentTokenMisused(token.id, "another network")
    if token.client_id is not None and not _is_repeat(session, token, token.client_id, request):
        raise EnrolmentTokenMisused(token.id, "used before")


def _is_within(caller: Request, network: str) -> bool:
    try:
        return caller.client is not None and ip_address(caller.client.host) in ip_network(network)
    except ValueError:
        return False


def _is_repeat(session: Session, token: EnrolmentTokenRow, client_id: str, request: EnrolmentRequest) -> bool:
    if request.public_key is not None:
        return store.is_key_of(session, request.public_key, client_id)
    repeat = tokens.fingerprint(request)
    return repeat is not None and repeat == token.retry_key_hash


def admit_member(
    session: Session, token: EnrolmentTokenRow, request: EnrolmentRequest, credential: str | None
) -> ClientRow:
    """Store a new client of an eligible model, with its key, and use up its token."""
    federation = lock_federation(session, token.federation_id)
    plan = FederationPlan.model_validate(federation.plan)
    if token.base_model not in (None, request.profile.base_model):
        raise Invalid(
            f"this token is for the base model {token.base_model}, but the profile names "
            f"{request.profile.base_model}; set `model` and use the token again, or ask the operator for "
            "another token",
            field="profile.base_model",
        )
    has_key = request.public_key is not None
    check_eligible(open_plan(plan), federation.state, request.profile, has_key=has_key)
    members = store.tokenizers_of(session, token.federation_id, request.profile.base_model)
    check_tokenizer(request.profile, members)
    digest = hash_of(credential) if credential is not None else None
    repeat = tokens.fingerprint(request)
    client = store.use_token(session, token, request, credential_hash=digest, repeat=repeat)
    if request.public_key is not None and not store.add_key(session, request.public_key, client.id):
        raise WeakPublicKey("another client has this key; generate one per client")
    roster.append(session, client, "enrolled", request.public_key, client.enrolled_at)
    shown = store.client_view(client, rounds=0)
    event_log.append(session, client.federation_id, "client", shown.model_dump(mode="json"), client.id)
    audit_log.append(session, "client-enrolled", actor=token.id, subject=client.id)
    bind(client=client.id)
    log.info("client-enrolled", federation=client.federation_id, identity=shown.identity)
    return client


def _enrolment(client_id: str, federation_id: str, credential: str | None) -> Enrolment:
    return Enrolment(
        client_id=client_id,
        federation_id=federation_id,
        credential=credential,
        protocol_version=PROTOCOL_VERSION,
    )
