"""Fuzzing targets: readers of foreign bytes, which accept an input or raise a named error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.identity import enrolment_token, signed_requests
from schemas.maths.adapter import block_modules, pq_layout
from schemas.messages.recipes import Recipe, ValueFormat
from schemas.messages.updates import UpdateManifest
from schemas.wire.digests import digest_of, from_field, to_field
from schemas.wire.envelope import pack, slots, unpack
from schemas.wire.errors import BodyRefused
from schemas.wire.streams import CODES, POSITIONS, SCALES, CodedStreams, decode, encode, stream_slots
from tests.scene.tensors import filled_tensors

LIMIT = 2**20
"""The largest body that may be decoded."""

_LAYOUT = pq_layout(block_modules(2, ["q", "v"]), 3)
_SLOTS = slots(_LAYOUT)
_RECIPE = Recipe(reference="served", density=0.5, values="int4")

# Large enough for places that are written as gaps, where few of the values travel.
_WIDE = pq_layout(["b0.q"], 24)
_RECIPES = [
    Recipe(reference="served", density=density, values=values)
    for density in (0.05, 0.5, 1.0)
    for values in get_args(ValueFormat)
]
_CUTS = 5  # the recipe's number, and how long two of the three streams are


def _body(data: bytes) -> bool:
    return _decode(data, None)


def _frame(data: bytes) -> bool:
    return _decode(data, "zstd")


def _decode(data: bytes, encoding: Literal["zstd"] | None) -> bool:
    try:
        with unpack(data, encoding=encoding, expected=_SLOTS, max_bytes=LIMIT) as envelope:
            envelope.manifest(UpdateManifest)
            for name in envelope.names:
                envelope.read_float32(name)
    except BodyRefused:
        return False
    return True


def _recipe(data: bytes) -> bool:
    try:
        with unpack(data, encoding=None, expected=_SLOTS, coded=stream_slots(), max_bytes=LIMIT) as envelope:
            for _ in decode(envelope, _LAYOUT, _RECIPE):
                pass
    except BodyRefused:
        return False
    return True


def _streams(data: bytes) -> bool:
    """Read streams by one of all recipes, past the header that keeps most inputs from coming so far."""
    if len(data) < _CUTS:
        return False
    codes = _CUTS + int.from_bytes(data[1:3], "little")
    scales = codes + 2 * int.from_bytes(data[3:5], "little")
    halves = data[codes:scales]
    coded = CodedStreams(
        {
            CODES: np.frombuffer(data[_CUTS:codes], np.uint8),
            SCALES: np.frombuffer(halves[: len(halves) // 2 * 2], np.float16),
            POSITIONS: np.frombuffer(data[scales:], np.uint8),
        }
    )
    try:
        for _ in decode(coded, _WIDE, _RECIPES[data[0] % len(_RECIPES)]):
            pass
    except BodyRefused:
        return False
    return True


def _signature(data: bytes) -> bool:
    text = data.decode("latin-1")
    signature_input, _, signature = text.partition("\n")
    try:
        signed_requests.read(signature_input, signature)
    except signed_requests.ProfileBroken:
        return False
    return True


def _token(data: bytes) -> bool:
    try:
        enrolment_token.read(data.decode("latin-1"))
    except enrolment_token.TokenMalformed:
        return False
    return True


def _digest(data: bytes) -> bool:
    return from_field(data.decode("latin-1")) is not None


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "body": _body,
    "frame": _frame,
    "recipe": _recipe,
    "streams": _streams,
    "signature": _signature,
    "token": _token,
    "digest": _digest,
}

DECODING = frozenset({"body", "frame", "recipe", "streams"})
"""What unfolds its input, and so may take much memory for a little; the others only look at it."""


def seeds(target: str) -> list[bytes]:
    """Return valid inputs of a target, which fuzzing mutates."""
    manifest = UpdateManifest(
        federation="fed", recipe={}, round=1, client="c", base=f"sha256:{'0' * 64}", pack=None, examples=1
    )
    tensors = filled_tensors(_LAYOUT, 1.0)
    match target:
        case "body":
            return [pack(tensors, manifest)]
        case "frame":
            return [pack(tensors, manifest, compress=True)]
        case "recipe":
            return [pack(dict(encode(tensors, _RECIPE, "seed").tensors), manifest)]
        case "streams":
            return [_written(number) for number in range(len(_RECIPES))]
        case "signature":
            key = Ed25519PrivateKey.from_private_bytes(bytes(32))
            request = signed_requests.Target("PUT", "localhost", "/v1/me", "", "sha-256=:AA==:")
            fields = signed_requests.sign(request, key, created=1, nonce="0123456789abcdef")
            return ["\n".join(fields.values()).encode()]
        case "token":
            return [str(enrolment_token.EnrolmentTokenText("0" * 24, "A" * 43, "A" * 43)).encode()]
        case _:
            return [to_field(digest_of(b"")).encode()]


def _written(number: int) -> bytes:
    """Write streams as `streams` reads them."""
    draw = np.random.default_rng(number)
    values = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in _WIDE.items()}
    sent = encode(values, _RECIPES[number], "seed").tensors
    codes, scales, positions = (
        sent[name] if name in sent else np.empty(0, np.uint8) for name in (CODES, SCALES, POSITIONS)
    )
    cuts = bytes([number]) + len(codes).to_bytes(2, "little") + len(scales).to_bytes(2, "little")
    return cuts + codes.tobytes() + scales.tobytes() + positions.tobytes()
