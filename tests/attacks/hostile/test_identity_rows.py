"""Rows 1 to 11: authentication and authorisation."""

from __future__ import annotations

import base64
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.identity.enrolment_token import read
from schemas.identity.keys import name_of
from tests.attacks.hostile.attack import Case, assert_refused
from tests.attacks.hostile.scene import Scene
from tests.scene.coordinator import Silo, enrolment
from tests.scene.plans import federation_plan
from tests.scene.rounds import upload_headers, url
from tests.scene.signed_requests import signed

Send = Callable[[Scene], httpx.Response]
AUDIT = frozenset({"audit"})
_IDENTITY = b"\x01" + bytes(31)  # the neutral point, of order 1
_NOT_CANONICAL = b"\xee" + b"\xff" * 30 + b"\x7f"  # y = p + 1


def _changed(change: Callable[[dict[str, str]], dict[str, str]], query: str = "?a=1") -> Send:
    def send(scene: Scene) -> httpx.Response:
        request = signed(scene.served, scene.silo, "GET", f"/v1/me{query}")
        altered = httpx.Request("GET", request.url, headers=change(dict(request.headers)))
        return scene.served.http().send(altered)

    return send


def _flipped(headers: dict[str, str]) -> dict[str, str]:
    value = headers["signature"]
    return headers | {"signature": value[:20] + ("A" if value[20] != "A" else "B") + value[21:]}


def _second_label(headers: dict[str, str]) -> dict[str, str]:
    value = headers["signature"]
    return headers | {"signature": value + ", " + value.replace("sig1", "sig2")}


def _moved(path: str) -> Send:
    def send(scene: Scene) -> httpx.Response:
        request = signed(scene.served, scene.silo, "GET", f"/v1/federations/{scene.silo.federation_id}/plan")
        moved = httpx.Request("GET", scene.served.url + path.format(scene=scene), headers=request.headers)
        return scene.served.http().send(moved)

    return send


def _signed_at(seconds: float) -> Send:
    def send(scene: Scene) -> httpx.Response:
        request = signed(scene.served, scene.silo, "GET", "/v1/me", created=time.time() + seconds)
        return scene.served.http().send(request)

    return send


def _signed_with(key: Callable[[Scene], Ed25519PrivateKey], method: str, path: str) -> Send:
    def send(scene: Scene) -> httpx.Response:
        request = signed(scene.served, scene.silo, method, path.format(scene=scene), key=key(scene))
        return scene.served.http().send(request)

    return send


def _twice(scene: Scene) -> httpx.Response:
    request = signed(scene.served, scene.silo, "POST", url(scene.silo, 1, "/join"))
    assert scene.served.http().send(request).status_code == 200
    return scene.served.http().send(request)


def _uncovered(scene: Scene) -> httpx.Response:
    body = scene.good()
    bare = signed(scene.served, scene.silo, "PUT", scene.update)
    headers = {k: v for k, v in bare.headers.items() if k != "content-length"} | upload_headers(body)
    return scene.served.http().send(httpx.Request("PUT", bare.url, content=body, headers=headers))


def _request_as(caller: str, method: str, path: str, **content: Any) -> Send:
    def send(scene: Scene) -> httpx.Response:
        silo: Silo = getattr(scene, caller)
        return silo.http.request(method, path.format(scene=scene), **content)

    return send


def _enrols(change: Callable[[Scene, dict[str, Any]], dict[str, Any]], name: str = "intruder") -> Send:
    """Enrol with a valid token, and a request that `change` has changed."""

    def send(scene: Scene) -> httpx.Response:
        anonymous = scene.served.http()
        request = enrolment(anonymous, TOKENS[scene.served.url][name], name, Ed25519PrivateKey.generate())
        return anonymous.post("/v1/enrolments", json=change(scene, request))

    return send


def _key(raw: bytes) -> Callable[[Scene, dict[str, Any]], dict[str, Any]]:
    text = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    return lambda _, request: request | {"public_key": text}


def _guessed(_: Scene, request: dict[str, Any]) -> dict[str, Any]:
    token = str(request["token"])
    return request | {"token": token[:-8] + ("A" if token[-8] != "A" else "B") + token[-7:]}


def _respelt(**parts: str) -> Callable[[Scene, dict[str, Any]], dict[str, Any]]:
    return lambda _, request: request | {"token": str(replace(read(request["token"]), **parts))}


FEDERATION = "/v1/federations/{scene.silo.federation_id}"
ELSEWHERE = "/v1/federations/{scene.elsewhere.federation_id}"
PEER_CLIENT = FEDERATION + "/clients/{scene.second.client_id}"
PLAN = federation_plan().model_dump(mode="json")

TOKENS: dict[str, dict[str, str]] = {}
"""Enrolment tokens by coordinator and client name; an expired one and a used one among them."""


@pytest.fixture(scope="module", autouse=True)
def _tokens(scene: Scene) -> Iterator[None]:
    served, federation_id = scene.served, scene.silo.federation_id
    tokens = {name: served.enrolment_token(federation_id, name) for name in ("intruder", "used")}
    tokens["expired"] = served.enrolment_token(federation_id, "expired", expires_in_seconds=1)
    assert served.try_enrol(tokens["used"], "used").status_code == 201
    time.sleep(1.1)
    TOKENS[served.url] = tokens
    yield
    del TOKENS[served.url]


CASES = [
    Case(1, "nobody", lambda s: s.served.http().get("/v1/me"), 401, "auth-missing"),
    Case(1, "nobody uploads", lambda s: s.served.http().put(s.update, content=b"x"), 401, "auth-missing"),
    Case(2, "a bit of the signature", _changed(_flipped), 401, "signature-invalid"),
    Case(2, "another path", _moved(FEDERATION + "/roster"), 401, "signature-invalid"),
    Case(2, "another query", _moved(FEDERATION + "/plan?a=1"), 401, "signature-invalid"),
    Case(3, "ten minutes old", _signed_at(-600), 401, "clock-skew"),
    Case(3, "ten minutes ahead", _signed_at(600), 401, "clock-skew"),
    Case(
        4,
        "an unknown key",
        _signed_with(lambda _: Ed25519PrivateKey.generate(), "GET", "/v1/me"),
        401,
        "signature-invalid",
    ),
    Case(5, "a revoked key", _signed_with(lambda s: s.revoked.key, "GET", "/v1/me"), 401, "key-revoked"),
    Case(
        5,
        "a revoked key joins",
        _request_as("revoked", "POST", FEDERATION + "/rounds/1/join"),
        401,
        "key-revoked",
    ),
    Case(6, "a used nonce", _twice, 401, "replayed"),
    Case(7, "a body that is not signed", _uncovered, 401, "signature-profile"),
    Case(7, "a second label", _changed(_second_label), 401, "signature-profile"),
    Case(8, "another's state", _request_as("silo", "GET", PEER_CLIENT + "/adapter"), 404, "not-found"),
    Case(8, "another's profile", _request_as("silo", "GET", PEER_CLIENT), 404, "not-found"),
    Case(8, "nobody's profile", _request_as("silo", "GET", FEDERATION + "/clients/cli_0"), 404, "not-found"),
    Case(8, "revokes another", _request_as("silo", "DELETE", PEER_CLIENT), 404, "not-found"),
    Case(8, "another's round", _request_as("silo", "GET", ELSEWHERE + "/rounds/1"), 404, "not-found"),
    Case(8, "joins elsewhere", _request_as("silo", "POST", ELSEWHERE + "/rounds/1/join"), 404, "not-found"),
    Case(
        8,
        "uploads from elsewhere",
        lambda s: s.elsewhere.http.put(s.update, content=s.good(), headers=upload_headers(s.good())),
        404,
        "not-found",
    ),
    Case(
        9, "opens a federation", _request_as("silo", "POST", "/v1/federations", json=PLAN), 403, "forbidden"
    ),
    Case(9, "ends its own", _request_as("silo", "POST", FEDERATION + "/finish"), 403, "forbidden"),
    Case(
        9,
        "revokes itself",
        _request_as("silo", "DELETE", FEDERATION + "/clients/{scene.silo.client_id}"),
        403,
        "forbidden",
    ),
    Case(
        9,
        "makes a token",
        _request_as("silo", "POST", "/v1/tokens", json={"role": "admin", "name": "x"}),
        403,
        "forbidden",
    ),
    Case(10, "no token", _enrols(lambda _, r: r | {"token": "tsr1_guess"}), 401, "enrolment-token-invalid"),
    Case(
        10,
        "another's name",
        _enrols(lambda _, r: r | {"name": "x"}),
        401,
        "enrolment-token-invalid",
        writes=AUDIT,
    ),
    Case(
        10,
        "an expired token",
        _enrols(lambda _, r: r, "expired"),
        401,
        "enrolment-token-invalid",
        writes=AUDIT,
    ),
    Case(10, "a used token", _enrols(lambda _, r: r, "used"), 401, "enrolment-token-invalid", writes=AUDIT),
    Case(10, "a misspelt token", _enrols(_guessed), 401, "enrolment-token-invalid"),
    Case(10, "another id", _enrols(_respelt(id="0" * 24)), 401, "enrolment-token-invalid"),
    Case(10, "another secret", _enrols(_respelt(secret="A" * 43)), 401, "enrolment-token-invalid"),
    Case(11, "a key of small order", _enrols(_key(_IDENTITY)), 422, "weak-public-key"),
    Case(11, "a key that is not canonical", _enrols(_key(_NOT_CANONICAL)), 422, "weak-public-key"),
    Case(11, "a key of 31 bytes", _enrols(_key(_IDENTITY[:31])), 422, "weak-public-key"),
    Case(
        11,
        "another's proof",
        _enrols(lambda _, r: r | {"public_key": name_of(Ed25519PrivateKey.generate())}),
        422,
        "weak-public-key",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_unauthorised_request_is_refused_without_effect(scene: Scene, case: Case) -> None:
    assert_refused(scene, case)


def test_misuses_of_a_token_have_one_answer(scene: Scene) -> None:
    asks = [case.send for case in CASES if case.row == 10]
    answers = {answer.text for send in asks if isinstance(answer := send(scene), httpx.Response)}
    assert len(answers) == 1


def test_unknown_keys_are_answered_like_wrong_signatures(scene: Scene) -> None:
    wrong, unknown = (next(case.send for case in CASES if case.row == row) for row in (2, 4))
    answers, ratios = set(), []
    for _ in range(4):  # a difference is there every time, a busy machine is not
        seconds: dict[int, list[float]] = {2: [], 4: []}
        for _ in range(60):
            for row, send in ((2, wrong), (4, unknown)):
                began = time.perf_counter()
                answer = send(scene)
                seconds[row].append(time.perf_counter() - began)
                assert isinstance(answer, httpx.Response)
                answers.add(answer.content)
        first, second = (statistics.quantiles(times, n=4)[0] for times in seconds.values())
        ratios.append(first / second)
        if 0.6 < ratios[-1] < 1.7:
            break
    assert len(answers) == 1
    assert 0.6 < ratios[-1] < 1.7, ratios
