"""Rows 25 to 37 for plain tensors: headers, names, shapes, offsets, values."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zstandard

from benchmarks.headers import HOSTILE
from schemas.wire.header import HEADER_LIMIT
from tests.attacks.hostile.attack import Case, assert_refused
from tests.attacks.hostile.scene import Scene, framed
from tests.scene.rounds import SIGNATURE, put, try_join, update_body, upload_headers, url, values

Make = Callable[[Scene], bytes]


def body(make: Make) -> Callable[[Scene], Any]:
    return lambda scene: put(scene.silo, 1, make(scene))


def tensor(**changes: Any) -> Callable[[Scene], Any]:
    return body(lambda scene: scene.raw(lambda header: header["b0.q.P"].update(changes)))


def renamed(name: str) -> Callable[[Scene], Any]:
    return body(lambda scene: scene.raw(lambda header: header.update({name: header.pop("b0.q.P")})))


def manifest(**changes: Any) -> Callable[[Scene], Any]:
    return body(lambda scene: scene.manifest(**changes))


def examples(text: str) -> Callable[[Scene], Any]:
    """Write a number of examples as JSON cannot, or should not."""

    def make(scene: Scene) -> bytes:
        def change(header: dict[str, Any]) -> None:
            manifest_text = header["__metadata__"]["tessera"]
            header["__metadata__"]["tessera"] = manifest_text.replace('"examples":10', f'"examples":{text}')
            assert header["__metadata__"]["tessera"] != manifest_text

        return scene.raw(change)

    return body(make)


def filled(fill: float) -> Callable[[Scene], Any]:
    return body(lambda scene: update_body(scene.silo, 1, scene.base, values(fill)))


def signed_with(signature: list[float]) -> Callable[[Scene], Any]:
    return body(lambda scene: scene.good(signature=np.array(signature, np.float32)))


def _beyond_its_clip(scene: Scene) -> Any:
    sent = update_body(scene.private, 1, scene.private_base, values(1.0), signature=1.01 * SIGNATURE)
    return put(scene.private, 1, sent)


def _empty_tensors(count: int) -> bytes:
    entry = '"t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    return framed(("{" + ",".join(entry.format(i) for i in range(count)) + "}").encode())


def _million(scene: Scene) -> Any:
    frame = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(_empty_tensors(1_000_000))
    return put(scene.silo, 1, frame, "zstd")


def _header(text: bytes) -> Callable[[Scene], Any]:
    return body(lambda _: framed(text))


def _long_header(make: Callable[[int], bytes]) -> Callable[[Scene], Any]:
    """Send a header as long as any may be, for an adapter that needs one."""
    return lambda scene: put(scene.deep, 1, framed(make(HEADER_LIMIT)))


def _joins(scene: Scene) -> Any:
    sent = b"\xff" * 20
    return scene.newcomer.http.post(
        url(scene.newcomer, 1, "/join"), content=sent, headers=upload_headers(sent)
    )


HEADERS = [
    Case(25, "empty", body(lambda _: b""), 422, "tensor-header"),
    Case(25, "7 bytes", body(lambda _: b"\x10" + bytes(6)), 422, "tensor-header"),
    Case(25, "longer than its layout needs", _header(b"{" + b" " * 2**17 + b"}"), 422, "tensor-header"),
    Case(25, "longer than the file", body(lambda _: framed(b"{}" + bytes(498))[:10]), 422, "tensor-header"),
    Case(25, "2^63", body(lambda _: (2**63).to_bytes(8, "little") + b"{}"), 422, "tensor-header"),
    Case(25, "2^64-1", body(lambda _: b"\xff" * 8 + b"{}"), 422, "tensor-header"),
    Case(25, "a newcomer's join", _joins, 422, "tensor-header"),
    Case(26, "a duplicate key", _header(b'{"a": {}, "a": {}}'), 422, "tensor-header"),
    Case(26, "a leading space", _header(b" {}"), 422, "tensor-header"),
    Case(26, "not UTF-8", _header(b'{"\xff"'), 422, "tensor-header"),
    Case(26, "depth 200,000", _header(b'{"a":' + b"[" * 200_000), 422, "tensor-header"),
    Case(26, "as deep as fits", _header(b'{"a":' + b"[" * 65_000), 422, "tensor-header"),
    Case(26, "an integer of 5,000 digits", _header(b'{"a":' + b"9" * 5000 + b"}"), 422, "tensor-header"),
    Case(27, "100,000 empty tensors", body(lambda _: _empty_tensors(100_000)), 422, "tensor-header"),
    Case(27, "1,000,000 empty tensors", _million, 422, "tensor-header"),
    *(
        Case(26, f"1 MiB: {name}", _long_header(make), 422, "tensor-header", travels_mib=1)
        for name, make in HOSTILE.items()
    ),
]
_ACCENTED = unicodedata.normalize("NFC", "b0.é.P")
SCHEMAS = [
    Case(28, "unknown", renamed("b9.q.P"), 422, "tensor-schema"),
    Case(
        28,
        "missing",
        body(lambda s: update_body(s.silo, 1, s.base, {"b0.q.Q": SIGNATURE[:2]})),
        422,
        "tensor-schema",
    ),
    Case(28, "a path", renamed("../x"), 422, "tensor-schema"),
    Case(28, "NUL", renamed("b0.q.P\x00"), 422, "tensor-schema"),
    Case(28, "60 kB", renamed("x" * 60_000), 422, "tensor-schema"),
    Case(28, "1 MB, which no header has room for", renamed("x" * 10**6), 422, "tensor-header"),
    Case(28, "__class__", renamed("__class__"), 422, "tensor-schema"),
    Case(28, "right to left", renamed("\u202eb0.q.P"), 422, "tensor-schema"),
    Case(28, "an NFC name", renamed(_ACCENTED), 422, "tensor-schema"),
    Case(28, "its NFD twin", renamed(unicodedata.normalize("NFD", _ACCENTED)), 422, "tensor-schema"),
    Case(28, "full-width letters", renamed("ｂ0.q.P"), 422, "tensor-schema"),
    Case(29, "another shape", tensor(shape=[4]), 422, "tensor-schema"),
    Case(29, "65 dimensions", tensor(shape=[1] * 63 + [2, 2]), 422, "tensor-schema"),
    Case(29, "2^32 x 2^32", tensor(shape=[2**32, 2**32]), 422, "tensor-schema"),
    Case(29, "-1", tensor(shape=[-1, -4]), 422, "tensor-schema"),
    Case(29, "1.5", tensor(shape=[1.5, 2]), 422, "tensor-schema"),
    *(
        Case(30, kind, tensor(dtype=kind), 422, "tensor-dtype")
        for kind in ("BF16", "F8_E4M3", "BOOL", "F64", "F13")
    ),
    Case(31, "overlap", tensor(data_offsets=[8, 24]), 422, "tensor-layout"),
    Case(31, "a hole", body(lambda s: s.raw(_with_a_hole, bytes(44))), 422, "tensor-layout"),
    Case(31, "reversed offsets", tensor(data_offsets=[16, 0]), 422, "tensor-layout"),
    Case(31, "a zip behind", body(lambda s: s.good() + b"PK\x05\x06" + bytes(18)), 422, "tensor-layout"),
]
CONTENT = [
    Case(32, "NaN", filled(float("nan")), 422, "tensor-nonfinite"),
    Case(32, "infinity", filled(float("inf")), 422, "tensor-nonfinite"),
    Case(32, "a flood of denormals", filled(1e-40), 422, "tensor-nonfinite"),
    Case(35, "a norm over the limit", filled(50.0), 422, "norm-exceeded"),
    Case(35, "a norm over float32", filled(3e38), 422, "norm-exceeded"),
    Case(36, "another length", signed_with([1.0, 2.0]), 422, "signature-vector"),
    Case(36, "not finite", signed_with([1.0, float("nan"), 0.0, 0.0]), 422, "tensor-nonfinite"),
    Case(36, "all zeros", signed_with([0.0] * 4), 422, "signature-vector"),
    Case(36, "longer than the clip of a private plan", _beyond_its_clip, 422, "signature-vector"),
    Case(
        36,
        "a join's, longer than that clip",
        lambda s: try_join(s.private, 1, 2 * SIGNATURE),
        422,
        "signature-vector",
    ),
    *(
        Case(37, f"examples {text[:9]}", examples(text), 422, "metadata")
        for text in ("0", "-1", str(2**63), "1e400", "NaN", "true", '"5"', "1.0", "9" * 5000)
    ),
    Case(37, "no manifest", body(lambda s: s.raw(lambda h: h.pop("__metadata__"))), 422, "metadata"),
    Case(37, "no pack", manifest(pack=...), 422, "metadata"),
    Case(37, "another kind", manifest(kind="weights"), 422, "metadata"),
    Case(37, "another version", manifest(version=2), 422, "metadata"),
    Case(37, "another round", manifest(round=2), 422, "metadata"),
    Case(37, "another client", manifest(client="cli_0"), 422, "metadata"),
    Case(37, "another federation", manifest(federation="fed_0"), 422, "metadata"),
    Case(37, "a pack where there is none", manifest(pack="sha256:" + "0" * 64), 422, "metadata"),
    Case(37, "an unknown recipe", manifest(recipe={"quantise": "int3"}), 422, "metadata"),
]
PRECEDENCE = [
    Case(28, "before dtype", body(lambda s: s.raw(lambda h: _two_faults(h))), 422, "tensor-schema"),
    Case(
        35,
        "before the manifest",
        body(lambda s: update_body(s.silo, 2, s.base, values(50.0))),
        422,
        "norm-exceeded",
    ),
    Case(37, "before the base", manifest(base="sha256:" + "0" * 64, round=2), 422, "metadata"),
]
CASES = [*HEADERS, *SCHEMAS, *CONTENT, *PRECEDENCE]


def _with_a_hole(header: dict[str, Any]) -> None:
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] > 0:
            entry["data_offsets"] = [place + 4 for place in entry["data_offsets"]]


def _two_faults(header: dict[str, Any]) -> None:
    header["x"] = header.pop("b0.q.P")
    header["b0.q.Q"]["dtype"] = "F64"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hostile_body_is_refused(scene: Scene, case: Case) -> None:
    assert_refused(scene, case)
