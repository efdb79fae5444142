"""Fetch the coordinator's greeting, and verify it: the key pinned at enrolment, and the address."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import httpx

from client_agent.errors import (
    AddressMismatch,
    AnswerUnreadable,
    CoordinatorNotTrusted,
    CoordinatorRefused,
    VersionMismatch,
)
from client_agent.transport.responses import read, require_success
from schemas import PROTOCOL_VERSION
from schemas.identity.addresses import equivalent_authorities, root_path_of
from schemas.identity.documents import is_signed
from schemas.identity.keys import KeyUnusable, public_key, thumbprint
from schemas.messages.federations import FederationPlan
from schemas.messages.secure_sum import CAPABILITY
from schemas.messages.tokens import Hello
from schemas.wire.strict_json import MalformedJson, loads

_CHALLENGE_BYTES = 24


def new_challenge() -> str:
    """Return a random challenge; the signed answer repeats it, which excludes a replay."""
    return secrets.token_urlsafe(_CHALLENGE_BYTES)


def fetch_hello(call: Callable[[str, str], httpx.Response], url: str, pin: str | None = None) -> Hello:
    """Fetch the greeting by `call(method, path)`, and verify its address and, with `pin`, its signing key.

    Raises:
        CoordinatorNotTrusted: another coordinator answered, or an old answer was replayed.
        AddressMismatch: requests do not reach the coordinator under the address for which they are signed.
    """
    challenge = new_challenge() if pin is not None else None
    answer = call("GET", "/v1/hello" if challenge is None else f"/v1/hello?challenge={challenge}")
    hello = read(Hello, answer)
    if pin is not None and challenge is not None:
        check_hello(answer.content, hello, challenge=challenge, pin=pin)
    check_address(hello, url=url, host=answer.request.headers["Host"])
    return hello


def explain_refusal(get: Callable[[str], httpx.Response], url: str) -> None:
    """Raise AddressMismatch if a signature was refused because a proxy changes what it covers."""
    try:
        fetch_hello(lambda _, path: require_success(get(url + path)), url)
    except (httpx.TransportError, AnswerUnreadable, CoordinatorRefused):
        return  # the refusal itself is reported


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
    # The signature is verified over the raw document: fields that this agent does not know are signed, too.
    if not isinstance(document, dict) or hello.challenge != challenge or thumbprint(hello.signing_key) != pin:
        raise CoordinatorNotTrusted
    if not is_signed("tessera-hello-v1", document, hello.signature, key):
        raise CoordinatorNotTrusted


def check_address(hello: Hello, *, url: str, host: str) -> None:
    """Verify that signatures cover what the coordinator receives: the path of `url`, and the Host field sent.

    Raises:
        AddressMismatch: `url` has another path than the coordinator announces, or a proxy replaces the host.
    """
    path = root_path_of(url)
    if path != hello.root_path:
        corrected = url.rstrip("/").removesuffix(path) + hello.root_path
        raise AddressMismatch(
            url,
            f"its path is {path or 'empty'}, and the coordinator announces {hello.root_path or 'none'}. If "
            f"{corrected} is its address, set `url` to that; otherwise the operator must set "
            f"TESSERA_ROOT_PATH to {path or 'nothing'}",
        )
    if hello.authority is not None and host.lower() not in equivalent_authorities(hello.authority):
        raise AddressMismatch(
            url,
            f"its host is {host}, and requests arrive at the coordinator for {hello.authority}. The operator "
            "lets the proxy pass Host on unchanged (nginx: proxy_set_header Host $http_host)",
        )


def require_protocol(hello: Hello) -> None:
    """Raise VersionMismatch if the coordinator speaks another version of the protocol."""
    if hello.protocol_version != PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the coordinator speaks protocol {hello.protocol_version}, this agent {PROTOCOL_VERSION}"
        )


def require_sums(hello: Hello, plan: FederationPlan) -> None:
    """Raise VersionMismatch if a plan sums updates and the coordinator has another format of sessions."""
    if plan.privacy.secure_sum is not None and CAPABILITY not in hello.capabilities:
        raise VersionMismatch(
            f"the federation sums updates, and the coordinator's sessions are not of this agent's format "
            f"{CAPABILITY}"
        )
