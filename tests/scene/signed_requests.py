"""Signed requests of a client, made by hand, so that any part can be wrong."""

from __future__ import annotations

import itertools
import time

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.identity.signed_requests import Target, sign
from schemas.wire.digests import digest_of, to_field
from tests.scene.coordinator import Served, Silo, slug

_numbers = itertools.count()


def signed(
    served: Served,
    silo: Silo,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    key: Ed25519PrivateKey | None = None,
    created: float | None = None,
    nonce: str | None = None,
    covers: str | None = None,
    **headers: str,
) -> httpx.Request:
    """Make a signed request by hand; `covers` is the Content-Digest that is signed, the body's by default."""
    digest = covers if covers is not None else (to_field(digest_of(body)) if body else None)
    named = {"Content-Digest": digest} if digest is not None else {}
    request = served.http().build_request(method, path, content=body or None, headers=named | headers)
    target, _, query = request.url.raw_path.decode().partition("?")
    request.headers.update(
        sign(
            Target(
                method,
                request.headers["host"],
                target,
                query,
                digest,
                prefer=request.headers.get("prefer"),
                range=request.headers.get("range"),
            ),
            key or silo.key,
            created=int(time.time() if created is None else created),
            nonce=nonce or f"nonce-of-a-test-{next(_numbers):09}",
        )
    )
    return request


def request_bytes(request: httpx.Request, *, body: bytes | None = None) -> bytes:
    """Return the bytes of a request."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    head = f"{request.method} {request.url.raw_path.decode()} HTTP/1.1\r\n{fields}\r\n".encode()
    return head + (request.content if body is None else body)


def send(served: Served, request: httpx.Request) -> tuple[int, str]:
    """Send a request; return the status and the problem type of a refusal."""
    answer = served.http().send(request)
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"].startswith("Signature")
    return answer.status_code, slug(answer) if answer.is_error else ""
