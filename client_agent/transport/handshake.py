"""Verify the coordinator's greeting against the key pinned at enrolment."""

from __future__ import annotations

import secrets

from client_agent.errors import CoordinatorNotTrusted, VersionMismatch
from schemas import PROTOCOL_VERSION
from schemas.identity.documents import is_signed
from schemas.identity.keys import KeyUnusable, public_key, thumbprint
from schemas.messages.tokens import Hello
from schemas.wire.strict_json import MalformedJson, loads

_CHALLENGE_BYTES = 24


def new_challenge() -> str:
    """Return a random challenge; the signed answer repeats it, which excludes a replay."""
    return secrets.token_urlsafe(_CHALLENGE_BYTES)


def check_hello(content: bytes, hello: Hello, *, challenge: str, pin: str) -> None:
    """Verify that the greeting in `content` is the pinned coordinator's answer to `challenge`.

    Raises:
        CoordinatorNotTrusted: the greeting has another signer, is a replay, or was altered in transit.
    """
    try:
        key = public_key(hello.signing_key)
        document = loads(content)
    except (KeyUnusable, MalformedJson) as error:
        raise CoordinatorNotTrusted from error
    if not isinstance(document, dict) or hello.challenge != challenge or thumbprint(hello.signing_key) != pin:
        raise CoordinatorNotTrusted
    if not is_signed("tessera-hello-v1", document, hello.signature, key):
        raise CoordinatorNotTrusted


def require_protocol(hello: Hello) -> None:
    """Raise VersionMismatch if the coordinator speaks another version of the protocol."""
    if hello.protocol_version != PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the coordinator speaks protocol {hello.protocol_version}, this agent {PROTOCOL_VERSION}"
        )
