"""Decide what the coordinator is believed: only what is signed with the key that the silo was told of."""

from __future__ import annotations

import secrets

from client_agent.errors import CoordinatorNotTrusted
from schemas.identity.documents import is_signed
from schemas.identity.keys import KeyUnusable, public_key, thumbprint
from schemas.messages.tokens import Hello
from schemas.wire.strict_json import MalformedJson, loads

_CHALLENGE_BYTES = 24


def new_challenge() -> str:
    """Make what a coordinator has to repeat, signed, so that its answer cannot be an old one."""
    return secrets.token_urlsafe(_CHALLENGE_BYTES)


def check_hello(content: bytes, hello: Hello, *, challenge: str, pin: str) -> None:
    """Check that a greeting, whose bytes are `content`, is the pinned coordinator's answer to `challenge`.

    Raises:
        CoordinatorNotTrusted: it is another's, an old one, or was altered on the way.
    """
    try:
        key = public_key(hello.signing_key)
        said = loads(content)
    except (KeyUnusable, MalformedJson) as error:
        raise CoordinatorNotTrusted from error
    if not isinstance(said, dict) or hello.challenge != challenge or thumbprint(hello.signing_key) != pin:
        raise CoordinatorNotTrusted
    if not is_signed("tessera-hello-v1", said, hello.signature, key):
        raise CoordinatorNotTrusted
