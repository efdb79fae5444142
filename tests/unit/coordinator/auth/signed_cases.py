"""Hooks of schemathesis: cases of a client, signed, with tensors, for existing federations and rounds.

Loaded by `st run` (SCHEMATHESIS_HOOKS). CASES in the environment is a JSON object: the client's key and ids,
and the weights that its round began with.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import Any

import numpy as np
import requests
import schemathesis
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import strategies as st

from schemas.identity.signed_requests import Target, sign
from schemas.maths.adapter import SIGNATURE
from schemas.messages.updates import SignatureManifest, UpdateManifest
from schemas.wire.digests import digest_of, to_field
from schemas.wire.envelope import MEDIA_TYPE, pack
from tests.scene.rounds import values

CLIENT: dict[str, str] = json.loads(os.environ["CASES"])
KEY: Any = load_pem_private_key(CLIENT["key"].encode(), password=None)
_numbers = itertools.count()


class Signed(requests.auth.AuthBase):
    """Signs a prepared request, with the digest of its body."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add Content-Digest, Signature-Input and Signature."""
        request.headers.pop("Authorization", None)  # which the document's bearer scheme has made up
        body = request.body.encode() if isinstance(request.body, str) else request.body
        if body:
            request.headers["Content-Digest"] = to_field(digest_of(body))
        path, _, query = request.path_url.partition("?")
        target = Target(
            method=request.method or "",
            authority=CLIENT["host"],
            path=path,
            query=query,
            content_digest=request.headers.get("Content-Digest"),
            prefer=_text(request.headers.get("Prefer")),
            range=_text(request.headers.get("Range")),
        )
        nonce = f"generated-{os.getpid():08}-{next(_numbers):09}"
        request.headers.update(sign(target, KEY, created=int(time.time()), nonce=nonce))
        return request


def _text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value


schemathesis.auth.set_from_requests(Signed())


@schemathesis.hook
def flatmap_path_parameters(
    context: schemathesis.HookContext, path_parameters: dict[str, Any] | None
) -> st.SearchStrategy[Any]:
    """Use the client's own federation and round in two of three cases."""
    existing = {
        "fid": CLIENT["federation"],
        "cid": CLIENT["client"],
        "n": 1,
        "base_model": CLIENT["base_model"],
    }
    drawn = path_parameters or {}
    drawn_parameters = drawn | {name: value for name, value in existing.items() if name in drawn}
    return st.sampled_from([drawn_parameters, drawn_parameters, path_parameters])


@schemathesis.hook
def map_headers(context: schemathesis.HookContext, headers: Any) -> Any:
    """Limit waits for a round to a second, in place of the example's half minute."""
    for name in headers or ():
        if name.lower() == "prefer" and "wait=" in str(headers[name]):
            headers[name] = "wait=1"
    return headers


def _update(fill: float, rank: int, examples: int, *, with_signature: bool) -> bytes:
    manifest = UpdateManifest(
        federation=CLIENT["federation"],
        recipe={},
        round=1,
        client=CLIENT["client"],
        base=CLIENT["base"],
        pack=None,
        examples=examples,
    )
    vector = {SIGNATURE: np.full(4, 0.5, np.float32)} if with_signature else {}
    return pack({**values(fill, rank), **vector}, manifest)


def _signature(fill: float, dim: int) -> bytes:
    manifest = SignatureManifest(federation=CLIENT["federation"], recipe={}, round=1, client=CLIENT["client"])
    return pack({SIGNATURE: np.full(dim, fill, np.float32)}, manifest)


def _spoilt(body: bytes, at: int, piece: bytes, cut: int) -> bytes:
    place = at % len(body)
    return (body[:place] + piece + body[place + len(piece) :])[: len(body) - cut]


_updates = st.builds(
    _update,
    st.floats(-100, 100, width=32),
    st.sampled_from([2, 2, 2, 3]),
    st.integers(1, 1000),
    with_signature=st.sampled_from([True, True, True, False]),
)
_signatures = st.builds(_signature, st.floats(-100, 100, width=32), st.sampled_from([4, 4, 5]))
_bodies = st.one_of(_updates, _signatures)
schemathesis.openapi.media_type(
    MEDIA_TYPE,
    st.one_of(
        _updates,
        _updates,
        _signatures,
        st.builds(
            _spoilt, _bodies, st.integers(0, 10**6), st.binary(max_size=16), st.sampled_from([0, 0, 1, 50])
        ),
        st.binary(max_size=200),
    ),
)
