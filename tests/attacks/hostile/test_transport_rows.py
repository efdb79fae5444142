"""Rows 12 to 19 and 50: bodies too large, truncated or mislabelled, and malformed requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.attacks.hostile.attack import Case, assert_refused
from tests.attacks.hostile.scene import CAP, Answer, Scene, exchange_bytes, media_type_headers
from tests.scene.rounds import upload_headers
from tests.scene.signed_requests import request_bytes, signed
from tests.scene.waiting import wait_until

_MIB = 2**20
MALFORMED = "malformed-request"


def _sends(changes: dict[str, str | None]) -> Callable[[Scene], Any]:
    """Upload a valid body with invalid header fields; None omits a field."""

    def send(scene: Scene) -> Any:
        body = scene.good()
        merged = {**upload_headers(body), **changes}
        headers = {name: value for name, value in merged.items() if value is not None}
        return scene.silo.http.put(scene.update, content=body, headers=headers)

    return send


def _without_digest(scene: Scene) -> Any:
    """Sign a request with a digest, and leave it out."""
    body = scene.good()
    request = signed(scene.served, scene.silo, "PUT", scene.update, body, **media_type_headers(body))
    del request.headers["Content-Digest"]
    return scene.served.http().send(request)


def _announced(size: int) -> Callable[[Scene], Answer]:
    """Announce a body, and send none of it."""

    def send(scene: Scene) -> Answer:
        request = signed(scene.served, scene.silo, "PUT", scene.update, b"x", **media_type_headers(b"x"))
        request.headers["Content-Length"] = str(size)
        return exchange_bytes(scene, request_bytes(request, body=b""))

    return send


def _announced_json(scene: Scene) -> Answer:
    path = f"/v1/federations/{scene.silo.federation_id}/rounds/1/scores"
    request = signed(scene.served, scene.silo, "PUT", path, b"{}", **{"Content-Type": "application/json"})
    request.headers["Content-Length"] = str(2 * _MIB)
    return exchange_bytes(scene, request_bytes(request, body=b""))


def _chunked(size: int) -> Callable[[Scene], Answer]:
    def send(scene: Scene) -> Answer:
        request = signed(scene.served, scene.silo, "PUT", scene.update, b"x", **media_type_headers(b"x"))
        del request.headers["Content-Length"]
        request.headers["Transfer-Encoding"] = "chunked"
        piece = b"%x\r\n" % _MIB + bytes(_MIB) + b"\r\n"
        pieces = [piece] * (size // _MIB + 1)
        return exchange_bytes(scene, request_bytes(request, body=b""), *pieces)

    return send


def _hangs_up(scene: Scene) -> Answer:
    body = scene.good()
    request = signed(scene.served, scene.silo, "PUT", scene.update, body, **media_type_headers(body))
    lines_before = len(_incomplete_body_lines(scene))
    with scene.served.line() as line:
        line.sendall(request_bytes(request, body=body[:50]))
        time.sleep(0.1)
    wait_until(lambda: len(_incomplete_body_lines(scene)) > lines_before)
    return Answer(0, "")


def _incomplete_body_lines(scene: Scene) -> list[str]:
    return [line for line in scene.served.log.read_text().splitlines() if '"body-incomplete"' in line]


def _sends_text(text: str) -> Callable[[Scene], Answer]:
    return lambda scene: exchange_bytes(scene, text.encode("latin-1"))


def _large_head(size: int, *, pieces: int = 1) -> Callable[[Scene], Answer]:
    """Send a header field of this size, at once or in pieces, without ever ending the head."""

    def send(scene: Scene) -> Answer:
        part = b"x" * (size // pieces)
        return exchange_bytes(
            scene, b"GET /v1/hello HTTP/1.1\r\nHost: localhost\r\nX-Large: ", *[part] * pieces, pause=0.01
        )

    return send


POST = "POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\n"
GET = "GET /v1/hello HTTP/1.1\r\nHost: localhost\r\n"
CASES = [
    Case(12, "announced over the cap", _announced(CAP + 1), 413, "body-too-large"),
    Case(12, "announced far over it", _announced(2**62), 413, "body-too-large"),
    Case(12, "JSON announced over its cap", _announced_json, 413, "body-too-large"),
    Case(13, "chunks passing the cap", _chunked(CAP), 413, "body-too-large", closes=True, travels_mib=64),
    Case(15, "hangs up amid its body", _hangs_up, 0, ""),
    Case(16, "no digest", _without_digest, 400, "digest-missing"),
    Case(16, "an empty digest", _sends({"Content-Digest": ""}), 400, "digest-missing"),
    Case(16, "md5 only", _sends({"Content-Digest": "md5=:Q2hlY2sgSW50ZWdyaXR5IQ==:"}), 400, "digest-missing"),
    Case(
        17,
        "another digest",
        _sends({"Content-Digest": "sha-256=:" + "A" * 43 + "=:"}),
        400,
        "digest-mismatch",
    ),
    Case(18, "pickle", _sends({"Content-Type": "application/x-pickle"}), 415, "media-type"),
    Case(18, "a .pt file", _sends({"Content-Type": "application/zip"}), 415, "media-type"),
    Case(18, "json", _sends({"Content-Type": "application/json"}), 415, "media-type"),
    Case(18, "no type", _sends({"Content-Type": None}), 415, "media-type"),
    Case(19, "gzip", _sends({"Content-Encoding": "gzip"}), 415, "content-encoding"),
    Case(19, "br", _sends({"Content-Encoding": "br"}), 415, "content-encoding"),
    Case(19, "zstd twice", _sends({"Content-Encoding": "zstd, zstd"}), 415, "content-encoding"),
    Case(
        50,
        "length and transfer encoding",
        _sends_text(POST + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        400,
        MALFORMED,
        closes=True,
    ),
    Case(
        50,
        "two lengths",
        _sends_text(POST + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
        400,
        MALFORMED,
        closes=True,
    ),
    Case(
        50, "bare LF", _sends_text("GET /v1/hello HTTP/1.1\nHost: localhost\n\n"), 400, MALFORMED, closes=True
    ),
    Case(
        50,
        "bare LF in a field",
        _sends_text("GET /v1/hello HTTP/1.1\r\nHost: localhost\nA: b\r\n\r\n"),
        400,
        MALFORMED,
        closes=True,
    ),
    Case(50, "a folded field", _sends_text(GET + "A: b\r\n c\r\n\r\n"), 400, MALFORMED, closes=True),
    Case(
        50,
        "another transfer encoding",
        _sends_text(POST + "Transfer-Encoding: gzip\r\n\r\nabc"),
        400,
        MALFORMED,
        closes=True,
    ),
    Case(
        50,
        "a negative length",
        _sends_text(POST + "Content-Length: -3\r\n\r\nabc"),
        400,
        MALFORMED,
        closes=True,
    ),
    Case(
        50,
        "not HTTP",
        _sends_text("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        400,
        MALFORMED,
        closes=True,
    ),
    Case(
        50,
        "a header of 17 KiB",
        _sends_text(GET + f"A: {'x' * 17 * 1024}\r\n\r\n"),
        431,
        "head-too-large",
        closes=True,
    ),
    Case(
        50,
        "many small fields",
        _sends_text(GET + "A: b\r\n" * 3000 + "\r\n"),
        431,
        "head-too-large",
        closes=True,
    ),
    Case(
        50,
        "a target of 17 KiB",
        _sends_text(f"GET /{'x' * 17 * 1024} HTTP/1.1\r\n\r\n"),
        414,
        "target-too-long",
        closes=True,
    ),
    Case(50, "a field without an end", _large_head(64 * _MIB, pieces=64), 431, "head-too-large", closes=True),
    Case(50, "a field that grows", _large_head(40 * 1024, pieces=40), 431, "head-too-large", closes=True),
    Case(
        50,
        "trailers without an end",
        _sends_text(POST + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + "A: b\r\n" * 50_000),
        431,
        "head-too-large",
        closes=True,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_malformed_request_is_refused(scene: Scene, case: Case) -> None:
    assert_refused(scene, case)


def test_a_head_just_below_16_kib_is_accepted(scene: Scene) -> None:
    answer = scene.served.http().get("/v1/hello", headers={"X-Large": "x" * 15 * 1024})
    assert answer.status_code == 200
