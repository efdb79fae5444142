"""Rows 38 to 44: malformed JSON, and messages that are early, late or repeated."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.attacks.hostile.attack import Case, assert_refused
from tests.attacks.hostile.scene import Scene, read_answer
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import join, put, running, update_body, url, values

JSON = {"Content-Type": "application/json"}
LATE = frozenset({"participations"})  # that a client was late is written down


def _plan(body: bytes) -> Callable[[Scene], Any]:
    return lambda scene: scene.served.admin.post("/v1/federations", content=body, headers=JSON)


def _scores(body: bytes) -> Callable[[Scene], Any]:
    return lambda scene: scene.silo.http.put(url(scene.silo, 1, "/scores"), content=body, headers=JSON)


def _named(name: str) -> bytes:
    return f'{{"name": {name}, "strategy": {{"name": "fedavg"}}}}'.encode()


def _uploads(caller: str) -> Callable[[Scene], Any]:
    def send(scene: Scene) -> Any:
        silo: Silo = getattr(scene, caller)
        return put(silo, 1, update_body(silo, 1, scene.base, values(2.0)))

    return send


def _to_round(number: int) -> Callable[[Scene], Any]:
    return lambda scene: put(scene.silo, number, scene.good())


def _other_bytes(scene: Scene) -> Any:
    silo = scene.delivered
    return put(silo, 1, update_body(silo, 1, join(silo, 1), values(2.0)))


CASES = [
    Case(38, "nothing", _plan(b""), 400, "malformed-json"),
    Case(38, "NaN", _plan(_named("NaN")), 400, "malformed-json"),
    Case(38, "a number beyond float64", _plan(_named("1e400")), 400, "malformed-json"),
    Case(38, "a duplicate key", _plan(b'{"name": "x", "name": "y"}'), 400, "malformed-json"),
    Case(38, "a lone surrogate", _plan(_named('"\\ud800"')), 400, "malformed-json"),
    Case(38, "not UTF-8", _plan(b'{"name": "\xff"}'), 400, "malformed-json"),
    Case(38, "too deep", _plan(b"[" * 60_000), 400, "malformed-json"),
    Case(38, "300 deep", _plan(_named("[" * 300 + "]" * 300)), 400, "malformed-json"),
    Case(38, "a number of 5,000 digits", _plan(_named("9" * 5000)), 400, "malformed-json"),
    Case(38, "scores of NaN", _scores(b'{"served": NaN}'), 400, "malformed-json"),
    Case(38, "cut off", _scores(b'{"served": {'), 400, "malformed-json"),
    # Too large is told before anything is parsed.
    Case(38, "a string of 10 MB", _plan(_named('"' + "x" * 10**7 + '"')), 413, "body-too-large"),
    Case(38, "a string of 60 kB", _plan(_named('"' + "x" * 60_000 + '"')), 422, "validation"),
    Case(38, "a NUL in a name", _plan(_named('"a\\u0000b"')), 422, "validation"),
    Case(39, "an unknown round", _to_round(7), 404, "not-found"),
    Case(39, "round 0", _to_round(0), 404, "not-found"),
    Case(39, "round 2^64", _to_round(2**64), 404, "not-found"),
    Case(40, "without joining", _uploads("newcomer"), 409, "not-joined"),
    Case(40, "while it is aggregated", _uploads("late"), 409, "round-closed", writes=LATE),
    Case(40, "after the end", _uploads("elsewhere"), 409, "round-closed", writes=LATE),
    Case(42, "other bytes", _other_bytes, 409, "upload-conflict"),
    Case(
        41,
        "another base",
        lambda s: put(s.silo, 1, s.manifest(base="sha256:" + "0" * 64)),
        412,
        "base-mismatch",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hostile_message_is_refused(scene: Scene, case: Case) -> None:
    assert_refused(scene, case)


def test_concurrent_replicas_accept_an_update_once(
    serve: Callable[..., Served], fresh_postgres: Callable[[], str]
) -> None:
    """Rows 42 and 43."""
    database = fresh_postgres()
    replicas = [serve(database), serve(database)]
    _, (silo, _) = running(replicas[0])
    base = join(silo, 1)
    body = update_body(silo, 1, base, values(1.0))
    lines = [
        Silo(silo.client_id, silo.federation_id, silo.key, replica.signing(silo.key)) for replica in replicas
    ]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda line: put(line, 1, body), lines))
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert answers[0].text == answers[1].text
    for line in lines:
        second = read_answer(put(line, 1, update_body(silo, 1, base, values(2.0))))
        assert (second.status, second.problem) == (409, "upload-conflict")
