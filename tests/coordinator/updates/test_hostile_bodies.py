"""What must be refused, each with its status and problem type, with nothing kept and the round unharmed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.coordinator.updates.target import LIMIT, Target, refused
from tests.taking_part import (
    SIGNATURE,
    put,
    update_body,
    upload_headers,
    url,
    values,
)

pytestmark = pytest.mark.usefixtures("leaves_no_trace")


def _tensor(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda header: header["b0.q.P"].update(changes)


def _renamed(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda header: header.update({name: header.pop("b0.q.P")})


def _filled(fill: float) -> Callable[[Target], bytes]:
    return lambda target: update_body(target.silo, 1, target.base, values(fill))


def _signed(signature: list[float]) -> Callable[[Target], bytes]:
    return lambda target: target.good(signature=np.array(signature, np.float32))


BODIES: dict[str, tuple[Callable[[Target], bytes], int, str]] = {
    # 25, 26, 27: what stands before the tensors
    "empty": (lambda _: b"", 422, "tensor-header"),
    "7 bytes": (lambda _: b"\x10" + bytes(6), 422, "tensor-header"),
    "header of 2^64-1": (lambda _: b"\xff" * 8 + b"{}", 422, "tensor-header"),
    "header of 2^63": (lambda _: struct.pack("<Q", 2**63) + b"{}", 422, "tensor-header"),
    "header longer than the file": (lambda _: struct.pack("<Q", 500) + b"{}", 422, "tensor-header"),
    "header with a duplicate key": (
        lambda t: (lambda b: struct.pack("<Q", len(b)) + b)(b'{"a": {}, "a": {}}'),
        422,
        "tensor-header",
    ),
    "header with a leading space": (lambda _: struct.pack("<Q", 3) + b" {}", 422, "tensor-header"),
    "header nested 20,000 deep": (
        lambda _: struct.pack("<Q", 40_001) + b'{"a":' + b"[" * 19_998 + b"]" * 19_998,
        422,
        "tensor-header",
    ),
    "header not UTF-8": (lambda _: struct.pack("<Q", 4) + b'{"\xff"', 422, "tensor-header"),
    "2,000 empty tensors": (
        lambda t: t.raw(
            lambda h: h.update(
                {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(2000)}
            )
        ),
        422,
        "tensor-header",
    ),
    # 28, 29, 30, 31: names, shapes, dtypes, places
    "unknown name": (lambda t: t.raw(_renamed("b9.q.P")), 422, "tensor-schema"),
    "path name": (lambda t: t.raw(_renamed("../b0.q.P")), 422, "tensor-schema"),
    "name with NUL": (lambda t: t.raw(_renamed("b0.q.P\x00")), 422, "tensor-schema"),
    "dunder name": (lambda t: t.raw(_renamed("__class__")), 422, "tensor-schema"),
    "missing tensor": (
        lambda t: update_body(t.silo, 1, t.base, {"b0.q.Q": SIGNATURE[:2]}),
        422,
        "tensor-schema",
    ),
    "other shape": (lambda t: t.raw(_tensor(shape=[4])), 422, "tensor-schema"),
    "65 dimensions": (lambda t: t.raw(_tensor(shape=[1] * 63 + [2, 2])), 422, "tensor-schema"),
    "huge shape": (lambda t: t.raw(_tensor(shape=[2**32, 2**32])), 422, "tensor-schema"),
    "negative shape": (lambda t: t.raw(_tensor(shape=[-2, -2])), 422, "tensor-schema"),
    "fractional shape": (lambda t: t.raw(_tensor(shape=[2.0, 2.0])), 422, "tensor-schema"),
    "BF16": (lambda t: t.raw(_tensor(dtype="BF16")), 422, "tensor-dtype"),
    "F64": (lambda t: t.raw(_tensor(dtype="F64")), 422, "tensor-dtype"),
    "BOOL": (lambda t: t.raw(_tensor(dtype="BOOL")), 422, "tensor-dtype"),
    "F13": (lambda t: t.raw(_tensor(dtype="F13")), 422, "tensor-dtype"),
    "overlap": (lambda t: t.raw(_tensor(data_offsets=[8, 24])), 422, "tensor-layout"),
    "reversed offsets": (lambda t: t.raw(_tensor(data_offsets=[16, 0])), 422, "tensor-layout"),
    "trailing zip": (lambda t: t.good() + b"PK\x05\x06" + bytes(18), 422, "tensor-layout"),
    # 32, 35, 36: values
    "NaN": (_filled(float("nan")), 422, "tensor-nonfinite"),
    "infinity": (_filled(float("inf")), 422, "tensor-nonfinite"),
    "denormals": (_filled(1e-40), 422, "tensor-nonfinite"),
    "norm over the limit": (_filled(50.0), 422, "norm-exceeded"),
    "signature of another length": (_signed([1.0, 2.0]), 422, "signature-vector"),
    "signature of zeros": (_signed([0.0] * 4), 422, "signature-vector"),
    # 37 and the manifest
    "no manifest": (lambda t: t.raw(lambda h: h.pop("__metadata__")), 422, "metadata"),
    "examples 0": (lambda t: t.manifest(examples=0), 422, "metadata"),
    "examples -1": (lambda t: t.manifest(examples=-1), 422, "metadata"),
    "examples 2^63": (lambda t: t.manifest(examples=2**63), 422, "metadata"),
    "examples true": (lambda t: t.manifest(examples=True), 422, "metadata"),
    "examples as a string": (lambda t: t.manifest(examples="5"), 422, "metadata"),
    "examples 1.0": (lambda t: t.manifest(examples=1.0), 422, "metadata"),
    "examples NaN": (lambda t: t.manifest(examples=float("nan")), 422, "metadata"),
    "examples missing": (lambda t: t.manifest(examples=...), 422, "metadata"),
    "pack missing": (lambda t: t.manifest(pack=...), 422, "metadata"),
    "another kind": (lambda t: t.manifest(kind="weights"), 422, "metadata"),
    "another version": (lambda t: t.manifest(version=2), 422, "metadata"),
    "another round": (lambda t: t.manifest(round=2), 422, "metadata"),
    "another client": (lambda t: t.manifest(client="cli_0"), 422, "metadata"),
    "another federation": (lambda t: t.manifest(federation="fed_0"), 422, "metadata"),
    "a pack where there is none": (lambda t: t.manifest(pack="sha256:" + "0" * 64), 422, "metadata"),
    "an unknown recipe": (lambda t: t.manifest(recipe={"quantise": "int3"}), 422, "metadata"),
    # 41
    "another base": (lambda t: t.manifest(base="sha256:" + "0" * 64), 412, "base-mismatch"),
    # 12
    "a body over the limit": (lambda _: bytes(LIMIT + 1), 413, "body-too-large"),
    # when several apply, the earlier one is told
    "schema before dtype": (
        lambda t: t.raw(lambda h: (_renamed("x")(h), h["b0.q.Q"].update(dtype="F64"))),
        422,
        "tensor-schema",
    ),
    "values before manifest": (lambda t: update_body(t.silo, 2, t.base, values(50.0)), 422, "norm-exceeded"),
    "manifest before base": (lambda t: t.manifest(base="sha256:" + "0" * 64, round=2), 422, "metadata"),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_hostile_body_is_refused(target: Target, body: str) -> None:
    make, status, kind = BODIES[body]
    assert refused(put(target.silo, 1, make(target))) == (status, kind)


HEADERS: dict[str, tuple[dict[str, str | None], int, str]] = {
    "an empty digest": ({"Content-Digest": ""}, 400, "digest-missing"),
    "md5 only": ({"Content-Digest": "md5=:1B2M2Y8AsgTpgAmY7PhCfg==:"}, 400, "digest-missing"),
    "another digest": (
        {"Content-Digest": "sha-256=:" + "A" * 43 + "=:"},
        400,
        "digest-mismatch",
    ),
    "pickle": ({"Content-Type": "application/x-pickle"}, 415, "media-type"),
    "json": ({"Content-Type": "application/json"}, 415, "media-type"),
    "no type": ({"Content-Type": None}, 415, "media-type"),
    "gzip": ({"Content-Encoding": "gzip"}, 415, "content-encoding"),
    "two encodings": ({"Content-Encoding": "zstd, zstd"}, 415, "content-encoding"),
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_hostile_header_is_refused(target: Target, header: str) -> None:
    changes, status, kind = HEADERS[header]
    body = target.good()
    merged = {**upload_headers(body), **changes}
    headers = {name: value for name, value in merged.items() if value is not None}
    answer = target.silo.http.put(url(target.silo, 1, "/update"), content=body, headers=headers)
    assert refused(answer) == (status, kind)


def test_a_chunked_body_over_the_limit_is_cut_off(target: Target) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(64):
            yield bytes(LIMIT // 16)

    headers = upload_headers(b"")
    try:
        answer = target.silo.http.put(url(target.silo, 1, "/update"), content=pieces(), headers=headers)
    except httpx.WriteError:
        return  # the answer was lost with the connection
    assert refused(answer) == (413, "body-too-large")


def test_an_unknown_round_is_not_found_before_a_byte_is_read(target: Target) -> None:
    answer = target.silo.http.put(url(target.silo, 7, "/update"), content=b"x")
    assert refused(answer) == (404, "not-found")
    answer = target.silo.http.put(url(target.silo, 0, "/update"), content=b"x")
    assert refused(answer) == (404, "not-found")


def test_nobody_unknown_is_read_from(target: Target) -> None:
    body = target.good()
    answer = target.served.http().put(
        url(target.silo, 1, "/update"), content=body, headers=upload_headers(body)
    )
    assert refused(answer) == (401, "auth-missing")
    answer = target.served.admin.put(
        url(target.silo, 1, "/update"), content=body, headers=upload_headers(body)
    )
    assert refused(answer) == (403, "forbidden")


def test_a_hostile_signature_does_not_join(target: Target) -> None:
    silo = target.newcomer
    body = b"\xff" * 20
    answer = silo.http.post(url(silo, 1, "/join"), content=body, headers=upload_headers(body))
    assert refused(answer) == (422, "tensor-header")
    assert target.silo.http.get(url(silo, 1)).json()["counts"]["joined"] == 2
