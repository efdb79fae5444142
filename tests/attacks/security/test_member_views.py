"""Information about other clients in a client's view: attacks, and a table of all routes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import deliver, join, plan, running, scored, send_scores, url, values, wait_for

TRUE = [0.91, 0.42, 0.77, 0.13, 0.66]
MOSAIC = plan(rounds={"total": 8}) | {"strategy": {"name": "fedmosaic"}}


def score(silo: Silo, number: int, exact_match: float, **others: float) -> None:
    sent = scored({"loss": 1.0, "exact_match": exact_match} | others)
    assert send_scores(silo, number, sent) == (204, "")


def unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / np.linalg.norm(vector)


def test_unit_sketches_do_not_reveal_a_peers_sketch(coordinator: Served) -> None:
    federation_id, (spy, peer) = running(coordinator, **MOSAIC)
    secret = unit(np.random.default_rng(3).normal(size=4))
    read: list[float] = []
    for number in range(1, 5):
        deliver(peer, number, values(1.0), signature=secret.astype(np.float32))
        deliver(spy, number, values(2.0), signature=np.eye(4, dtype=np.float32)[number - 1])
        wait_for(coordinator, federation_id, number, "published")
        row = spy.http.get(url(spy, number, "/relevance")).json()
        assert (row["similarity"], row["agreement"], row["changes"]) == (None, None, None)
        numbers = [*row["relevance"][0], *row["entropy"], *(row["served"] or [[]])[0]]
        assert numbers == [round(value, 2) for value in numbers]
        read.append(row["relevance"][0][row["clients"].index(peer.client_id)])
    exact = coordinator.admin.get(url(spy, 4, "/relevance")).json()
    own_row, column = (exact["clients"].index(client.client_id) for client in (spy, peer))
    assert exact["similarity"][own_row][column] == pytest.approx(secret[3], abs=1e-6), "people see everything"
    assert np.linalg.norm(unit(np.array(read) - 0.5 + 1e-9) - secret) > 0.05


def visible_scores(silo: Silo, number: int) -> list[Any]:
    """Return all scores of a round that a client can read."""
    listed = silo.http.get(f"/v1/federations/{silo.federation_id}/rounds").json()["items"]
    shown = silo.http.get(url(silo, number)).json()
    return [shown["scores"], *(entry["scores"] for entry in listed if entry["round"] == number)]


def test_a_running_mean_is_hidden_until_publication(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 5, **plan(rounds={"min_clients": 5}))
    for silo, exact in zip(silos, TRUE, strict=True):
        join(silo, 1)
        score(silo, 1, exact)
        assert visible_scores(silos[0], 1) == [None, None], "the round is not published"
    for silo in silos:
        deliver(silo, 1, values(1.0))
    wait_for(coordinator, federation_id, 1, "published")
    for shown in visible_scores(silos[0], 1):
        assert shown["worst"] is None, "it is one client's figure"
        assert shown["mean"]["exact_match"]["value"] == pytest.approx(np.mean(TRUE))
    view = coordinator.admin.get(url(silos[0], 1)).json()
    assert view["scores"]["worst"]["exact_match"]["value"] == min(TRUE)


def test_a_mean_is_hidden_while_scores_may_arrive(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 5, **plan(rounds={"min_clients": 5, "total": 4}))
    for number in (1, 2, 3):
        for silo in silos:
            deliver(silo, number, values(1.0))
        wait_for(coordinator, federation_id, number, "published")
        if number == 1:
            for silo in silos[:4]:
                score(silo, 1, 0.5)
            assert visible_scores(silos[0], 1) == [None, None], "the fifth's arrival would show its score"
    assert [shown["mean"]["exact_match"]["value"] for shown in visible_scores(silos[0], 1)] == [0.5, 0.5], (
        "none can come now"
    )


def test_clients_read_their_own_bytes_only(coordinator: Served) -> None:
    _, silos = running(coordinator, 3, **plan(rounds={"min_clients": 3}))
    for silo in silos[:2]:
        deliver(silo, 1, values(1.0))
    shown = silos[0].http.get(url(silos[0], 1)).json()
    assert shown["bytes"] == shown["clients"][0]["bytes"]
    assert silos[2].http.get(url(silos[2], 1)).json()["bytes"] == {"up": 0, "down": 0}
    view = coordinator.admin.get(url(silos[0], 1)).json()["bytes"]
    assert view["up"] > shown["bytes"]["up"] > 0


def events(http: httpx.Client, federation_id: str, last: str) -> list[dict[str, Any]]:
    """Read a federation's events of rounds from the beginning until a round is in a state."""
    read: list[dict[str, Any]] = []
    path = f"/v1/federations/{federation_id}/events"
    with http.stream("GET", path, headers={"Last-Event-ID": "0"}) as stream:
        for line in stream.iter_lines():
            data = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if "round" in data:
                read.append(data)
                if data["state"] == last:
                    return read
    raise AssertionError("the stream ended")


def test_a_clients_events_have_neither_bytes_nor_scores(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **plan(rounds={"total": 1}))
    for silo in silos:
        join(silo, 1)
        score(silo, 1, 0.5)
    for silo in silos:
        deliver(silo, 1, values(1.0))
    wait_for(coordinator, federation_id, 1, "published")
    shown = events(silos[0].http, federation_id, "published")
    assert [sorted(event) for event in shown] == [
        ["advice", "counts", "deadline", "opened_at", "published_at", "reason", "round", "seconds", "state"]
    ] * len(shown)
    assert (
        events(coordinator.admin, federation_id, "published")[-1]["scores"]["mean"]["exact_match"]["value"]
        == 0.5
    )


SUMMARY = {
    "advice",
    "round",
    "state",
    "reason",
    "deadline",
    "opened_at",
    "published_at",
    "counts",
    "seconds",
    "bytes",
    "scores",
}
FIELDS: dict[str, set[str] | int] = {
    "/v1/audit": 403,
    "/v1/strategies": 403,
    "/v1/federations": 403,
    "/v1/federations/{fid}": 403,
    "/v1/federations/{fid}/clients": 403,
    "/v1/federations/{fid}/enrolment-tokens": 403,
    "/v1/federations/{fid}/report": 403,
    "/v1/federations/{fid}/clients/{cid}": 404,
    "/v1/federations/{fid}/clients/{cid}/adapter": 404,
    "/v1/tokens": 403,
    "/v1/tokens/{token_id}": 403,
    "/v1/me": {"client_id", "name", "organisation", "federation_id", "state", "layout"},
    "/v1/federations/{fid}/alignments": {"items", "next", "voided"},
    "/v1/federations/{fid}/rounds": {"items", "next"},
    "/v1/federations/{fid}/experts": {"experts", "rounds", "events", "next"},
    "/v1/federations/{fid}/rounds/{n}": SUMMARY | {"clients", "claims", "sample", "secure_sum"},
    "/v1/federations/{fid}/rounds/{n}/relevance": {
        "round",
        "clients",
        "rows",
        "relevance",
        "similarity",
        "entropy",
        "served",
        "agreement",
        "changes",
        "held",
    },
}
"""What a client finds under each path that tells of others, or the status with which it is refused.

A client in {cid} is another one.
"""

UNRELATED = {
    "/healthz": "nothing of a federation",
    "/readyz": "nothing of a federation",
    "/metrics": "sums over all federations of a process",
    "/v1/hello": "the server",
    "/v1/sign-in": "the identity provider, if there is one",
    "/v1/federations/{fid}/events": "a test of its own above",
    "/v1/federations/{fid}/plan": "the plan, alike for all",
    "/v1/federations/{fid}/anchors": "the texts, alike for all",
    "/v1/federations/{fid}/roster": "public keys of the members, where the plan has them checked",
    "/v1/federations/{fid}/alignments/{base_model}": "a pack of a base model, alike for all",
    "/v1/federations/{fid}/experts/{expert}/{revision}": "an expert of the bank, alike for all",
    "/v1/federations/{fid}/rounds/current": "what the client has to do",
    "/v1/federations/{fid}/rounds/{n}/manifest": "the client's own",
    "/v1/federations/{fid}/rounds/{n}/weights": "the client's own",
    "/v1/federations/{fid}/rounds/{n}/secure-sum": "the terms of a session, for its members only",
    "/v1/federations/{fid}/rounds/{n}/secure-sum/{session}/{step}": "for members of a session",
}


def test_get_routes_show_clients_the_tables_fields_only(coordinator: Served) -> None:
    paths = coordinator.http().get("/openapi.json").json()["paths"]
    readable = {path for path, operations in paths.items() if "get" in operations}
    assert readable == FIELDS.keys() | UNRELATED.keys(), "a new route needs a row"
    federation_id, (silo, second) = running(coordinator, **MOSAIC)
    for client in (silo, second):
        deliver(client, 1, values(1.0))
        score(client, 1, 0.5)
    wait_for(coordinator, federation_id, 1, "published")
    for path, fields in FIELDS.items():
        answer = silo.http.get(path.format(fid=federation_id, n=1, cid=second.client_id, token_id="tok_0"))
        if isinstance(fields, int):
            assert answer.status_code == fields, path
        else:
            assert (answer.status_code, set(answer.json())) == (200, fields), path
    listed = silo.http.get(f"/v1/federations/{federation_id}/rounds").json()["items"]
    assert [set(client) for client in listed] == [SUMMARY, SUMMARY]
    shown = silo.http.get(url(silo, 1))
    assert [client["client_id"] for client in shown.json()["clients"]] == [silo.client_id]
    assert second.client_id not in shown.text
