"""Decide whether a newcomer has the key it shows. Knows no table: the token is looked up elsewhere."""

from __future__ import annotations

from datetime import datetime

from coordinator.errors import Invalid, WeakPublicKey
from coordinator.storage.server_key import ServerKey
from schemas.identity.documents import is_signed
from schemas.identity.enrolment_token import EnrolmentTokenText
from schemas.identity.keys import KeyUnusable, public_key
from schemas.messages.enrolment import EnrolmentRequest, enrolment_statement


def check(request: EnrolmentRequest, token: EnrolmentTokenText, server: ServerKey, moment: datetime) -> None:
    """Check the key of an enrolment and the proof that its private half is the sender's.

    Raises:
        WeakPublicKey: the key may not be used, or the proof is not its signature over this enrolment.
        Invalid: the nonce is not of this server, or older than an hour.
    """
    if request.public_key is None or request.nonce is None:
        return
    try:
        key = public_key(request.public_key)
    except KeyUnusable as error:
        raise WeakPublicKey(str(error)) from error
    said = enrolment_statement(
        server=server.id, token=token.id, public_key=request.public_key, nonce=request.nonce
    )
    if not is_signed("tessera-enrolment-v1", said, request.proof, key):
        raise WeakPublicKey("the proof is not this key's signature over this enrolment")
    if not server.knows(request.nonce, moment):
        raise Invalid("nonce: not of this server or too old; ask /v1/hello for another", field="nonce")
