"""Verify that an enrolling client possesses the private half of its public key."""

from __future__ import annotations

from datetime import datetime

from coordinator.errors import Invalid, WeakPublicKey
from coordinator.storage.server_key import ServerKey
from schemas.identity.documents import is_signed
from schemas.identity.enrolment_token import EnrolmentTokenText
from schemas.identity.keys import KeyUnusable, public_key
from schemas.messages.enrolment import EnrolmentRequest, enrolment_statement


def check(request: EnrolmentRequest, token: EnrolmentTokenText, server: ServerKey, now: datetime) -> None:
    """Verify the public key of an enrolment request and its proof of possession.

    Raises:
        WeakPublicKey: the key may not be used, or the proof is not its signature over this enrolment.
        Invalid: the nonce is not from this server, or older than an hour.
    """
    if request.public_key is None or request.nonce is None:
        return
    try:
        key = public_key(request.public_key)
    except KeyUnusable as error:
        raise WeakPublicKey(str(error)) from error
    statement = enrolment_statement(
        server=server.id, token=token.id, public_key=request.public_key, nonce=request.nonce
    )
    if not is_signed("tessera-enrolment-v1", statement, request.proof, key):
        raise WeakPublicKey(
            "the proof is not this key's signature over this enrolment; sign the statement with it"
        )
    if not server.issued(request.nonce, now):
        raise Invalid("nonce: not from this server or too old; get a new one from /v1/hello", field="nonce")
