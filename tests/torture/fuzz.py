"""Coverage-guided fuzzing of what reads strangers' bytes: only the named refusals may escape.

python -m tests.torture.fuzz TARGET [--seconds 60]

Needs `pip install -e '.[fuzz]'` (atheris). What breaks a target is written to runs/fuzz; memory above
three times the largest body that may be decoded is a crash too.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import atheris

with atheris.instrument_imports(include=["schemas"]):
    from schemas.identity import enrolment_token, signed_requests
    from schemas.maths.adapter import pq_layout
    from schemas.messages.recipes import Recipe
    from schemas.messages.updates import UpdateManifest
    from schemas.wire.coding import decode, encode, stream_slots
    from schemas.wire.digests import digest_of, from_field, to_field
    from schemas.wire.envelope import pack, slots, unpack
    from schemas.wire.refusals import BodyRefused

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_LIMIT = 2**20
_FOUND = Path("runs/fuzz")
_FUZZER_MIB = 64  # its own tables and corpus
_LAYOUT = pq_layout(2, ["q", "v"], 3)
_SLOTS = slots(_LAYOUT)
_RECIPE = Recipe(reference="served", density=0.5, values="int4")


def _body(data: bytes) -> None:
    _decode(data, None)


def _frame(data: bytes) -> None:
    _decode(data, "zstd")


def _decode(data: bytes, encoding: Literal["zstd"] | None) -> None:
    try:
        with unpack(data, encoding=encoding, expected=_SLOTS, max_bytes=_LIMIT) as envelope:
            envelope.manifest(UpdateManifest)
            for name in envelope.names:
                envelope.read_float32(name)
    except BodyRefused:
        return


def _recipe(data: bytes) -> None:
    try:
        with unpack(data, encoding=None, expected=_SLOTS, coded=stream_slots(), max_bytes=_LIMIT) as envelope:
            for _ in decode(envelope, _LAYOUT, _RECIPE):
                pass
    except BodyRefused:
        return


def _signature(data: bytes) -> None:
    text = data.decode("latin-1")
    signature_input, _, signature = text.partition("\n")
    try:
        signed_requests.read(signature_input, signature)
    except signed_requests.ProfileBroken:
        return


def _token(data: bytes) -> None:
    try:
        enrolment_token.read(data.decode("latin-1"))
    except enrolment_token.TokenMalformed:
        return


def _digest(data: bytes) -> None:
    from_field(data.decode("latin-1"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "body": _body,
    "frame": _frame,
    "recipe": _recipe,
    "signature": _signature,
    "token": _token,
    "digest": _digest,
}


def _seeds(target: str) -> list[bytes]:
    manifest = UpdateManifest(
        federation="fed", recipe={}, round=1, client="c", base=f"sha256:{'0' * 64}", pack=None, examples=1
    )
    tensors = {name: np.ones(shape, np.float32) for name, shape in _LAYOUT.items()}
    match target:
        case "body":
            return [pack(tensors, manifest)]
        case "frame":
            return [pack(tensors, manifest, compress=True)]
        case "recipe":
            return [pack(dict(encode(tensors, _RECIPE, "seed").tensors), manifest)]
        case "signature":
            key = Ed25519PrivateKey.from_private_bytes(bytes(32))
            request = signed_requests.Target("PUT", "localhost", "/v1/me", "", "sha-256=:AA==:")
            fields = signed_requests.sign(request, key, created=1, nonce="0123456789abcdef")
            return ["\n".join(fields.values()).encode()]
        case "token":
            return [str(enrolment_token.EnrolmentTokenText("ent_0", "A" * 43, "A" * 43)).encode()]
        case _:
            return [to_field(digest_of(b"")).encode()]


def main() -> None:
    """Fuzz one target; ends with status 0 when nothing was found."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    _FOUND.mkdir(parents=True, exist_ok=True)
    corpus = Path(tempfile.mkdtemp(prefix=f"fuzz-{arguments.target}-"))
    for place, seed in enumerate(_seeds(arguments.target)):
        (corpus / str(place)).write_bytes(seed)
    idle = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # as libFuzzer counts: the parent's too
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-rss_limit_mb={_FUZZER_MIB + (idle + 3 * _LIMIT) // 2**20}",
        "-timeout=5",
        f"-artifact_prefix={_FOUND}/",
        "-max_len=16384",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[arguments.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
