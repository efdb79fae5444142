"""Weights published as differences: who receives them, what they rebuild, and when all values are sent."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import select

from coordinator.db.tables.federations import CodedWeightsRow
from schemas.maths.adapter import in_order
from schemas.maths.start import from_start
from schemas.messages.recipes import SERVED_DIFFERENCES
from schemas.messages.updates import WeightsManifest
from schemas.wire.compress import decompress
from schemas.wire.digests import digest_of
from schemas.wire.envelope import MEDIA_TYPE, pack, unpack
from schemas.wire.served_difference import reconstructed
from schemas.wire.streams import stream_slots
from tests.scene.coded_weights import LAYOUT, RANK, Arrays
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import deliver, join, plan, running, show, tensors_of, url, wait_for, weights
from tests.scene.tensors import filled_tensors, random_tensors, zero_tensors

SEED = 0


def difference_plan(recipe: str = "int8", **changes: Any) -> dict[str, Any]:
    adapter = {"rank": RANK, "blocks": 1, "roles": ["q"]}
    return plan(**({"adapter": adapter, "wire": {"weights_recipe": recipe}} | changes))


def ask(silo: Silo, number: int, against: str | None, **headers: str) -> tuple[httpx.Response, bytes]:
    """Ask for a difference; return the answer and its bytes as they travel."""
    form = f'"{against}"' if against is not None else "none"
    accept = f"{MEDIA_TYPE};against={form}, {MEDIA_TYPE}"
    path = url(silo, number, "/weights")
    with silo.http.stream("GET", path, headers={"Accept": accept} | headers) as answer:
        return answer, b"".join(answer.iter_raw())


def plain(frame: bytes) -> bytes:
    sink = io.BytesIO()
    decompress(io.BytesIO(frame), sink, max_bytes=2**24)
    return sink.getvalue()


def rebuild_body(silo: Silo, frame: bytes, earlier: Arrays, recipe: str = "int8") -> bytes:
    """Return the dense body of a difference."""
    layout, by = in_order(dict(LAYOUT)), SERVED_DIFFERENCES[recipe]  # type: ignore[index]
    with unpack(plain(frame), encoding=None, expected={}, max_bytes=2**24, coded=stream_slots()) as body:
        manifest = body.manifest(WeightsManifest)
        assert manifest.recipe == by.model_dump(mode="json")
        assert manifest.client == ""
        values = dict(
            reconstructed(body, layout, by, lambda name: from_start(name, earlier.__getitem__, SEED, layout))
        )
    return pack(dict(values), manifest.model_copy(update={"client": silo.client_id, "recipe": {}}))


def play_round(served: Served, silos: list[Silo], number: int) -> None:
    for seed, silo in enumerate(silos):
        deliver(silo, number, random_tensors(LAYOUT, 10 * number + seed))
    wait_for(served, silos[0].federation_id, number, "published")


@dataclass(frozen=True)
class SecondRound:
    """Two clients in round 2, and the digests of their weights in both rounds."""

    silos: list[Silo]
    first: list[str]
    second: list[str]


@pytest.fixture(scope="module", params=["int8", "int4"])
def second(coordinator: Served, request: pytest.FixtureRequest) -> tuple[str, SecondRound]:
    _, silos = running(coordinator, **difference_plan(request.param))
    first = [join(silo, 1) for silo in silos]
    play_round(coordinator, silos, 1)
    return request.param, SecondRound(silos, first, [join(silo, 2) for silo in silos])


def test_a_difference_rebuilds_the_manifests_weights_exactly(second: tuple[str, SecondRound]) -> None:
    recipe, scene = second
    zeros = zero_tensors(LAYOUT)
    for silo, before, named in zip(scene.silos, scene.first, scene.second, strict=True):
        answer, frame = ask(silo, 2, before)
        assert (answer.status_code, answer.headers["content-encoding"]) == (200, "zstd")
        assert answer.headers["vary"] == "Accept"
        assert digest_of(rebuild_body(silo, frame, zeros, recipe)) == named
        dense = (RANK * RANK + RANK) * 4
        assert len(frame) < (0.35 if recipe == "int8" else 0.25) * dense


def test_differences_are_within_a_step_of_the_mean(second: tuple[str, SecondRound]) -> None:
    recipe, scene = second
    served = weights(scene.silos[0], 2, LAYOUT)
    for name in LAYOUT:
        mean = (random_tensors(LAYOUT, 10)[name] + random_tensors(LAYOUT, 11)[name]) / 2
        step = np.abs(mean).max() / {"int8": 127, "int4": 7}[recipe]
        assert 0 < np.abs(served[name] - mean).max() < 1.01 * step


def test_clients_of_equal_weights_share_one_difference(second: tuple[str, SecondRound]) -> None:
    _, scene = second
    frames = [ask(silo, 2, before)[1] for silo, before in zip(scene.silos, scene.first, strict=True)]
    assert frames[0] == frames[1]


def test_ranges_and_etags_refer_to_the_difference(second: tuple[str, SecondRound]) -> None:
    _, scene = second
    silo, before = scene.silos[0], scene.first[0]
    whole, frame = ask(silo, 2, before)
    tag = whole.headers["etag"]
    assert tag == f'"{digest_of(frame)}"'
    part, tail = ask(silo, 2, before, **{"Range": "bytes=100-", "If-Range": tag})
    assert (part.status_code, frame[:100] + tail) == (206, frame)
    assert ask(silo, 2, before, **{"If-None-Match": tag})[0].status_code == 304


@pytest.mark.parametrize("against", [None, "sha256:" + "0" * 64, "", "sha256:x"])
def test_clients_without_the_reference_get_dense_weights(
    second: tuple[str, SecondRound], against: str | None
) -> None:
    _, scene = second
    assert ask(scene.silos[0], 2, against)[0].headers["etag"] == f'"{scene.second[0]}"'


def test_zeros_take_a_few_bytes(second: tuple[str, SecondRound]) -> None:
    _, scene = second
    answer, frame = ask(scene.silos[0], 1, None)
    assert digest_of(plain(frame)) == scene.first[0]
    assert len(frame) < 500
    assert answer.headers["etag"] == f'"{digest_of(frame)}"'
    assert ask(scene.silos[0], 1, None)[1] == frame


def test_absent_clients_and_newcomers_get_dense_weights_once(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **difference_plan(rounds={"total": 5, "min_clients": 2}))
    digests = [join(silo, 1) for silo in silos]
    play_round(coordinator, silos, 1)
    newcomer = coordinator.enrol(federation_id, "late")
    play_round(coordinator, [silos[0], newcomer], 2)
    third = [join(silo, 3) for silo in (*silos, newcomer)]
    assert len({tuple(map(float, weights(s, 3, LAYOUT)["b0.q.Q"])) for s in (*silos, newcomer)}) == 1
    answer, _ = ask(silos[1], 3, digests[1])  # it has the weights of round 1
    assert answer.headers["etag"] == f'"{third[1]}"'
    two = digest_of(silos[0].http.get(url(silos[0], 2, "/weights")).content)
    assert ask(silos[0], 3, two)[0].headers["etag"] != f'"{third[0]}"'
    late = digest_of(newcomer.http.get(url(newcomer, 2, "/weights")).content)
    assert ask(newcomer, 3, late)[0].headers["etag"] == f'"{third[2]}"'  # its first weights were its own
    play_round(coordinator, [*silos, newcomer], 3)
    join(newcomer, 4)
    assert ask(newcomer, 4, third[2])[0].headers["content-encoding"] == "zstd"


def test_final_weights_are_published_as_differences(
    coordinator: Served,
) -> None:
    federation_id, silos = running(coordinator, **difference_plan(rounds={"total": 2, "min_clients": 2}))
    play_round(coordinator, silos, 1)
    named = [join(silo, 2) for silo in silos]
    first = digest_of(silos[0].http.get(url(silos[0], 1, "/weights")).content)
    before = show(coordinator, federation_id, 2)["bytes"]["down"]
    _, frame = ask(silos[0], 2, first)
    assert show(coordinator, federation_id, 2)["bytes"]["down"] - before == len(frame)
    latest = weights(silos[0], 2, LAYOUT)
    play_round(coordinator, silos, 2)
    answer, frame = ask(silos[0], 3, named[0])
    assert digest_of(rebuild_body(silos[0], frame, latest)) == digest_of(
        silos[0].http.get(url(silos[0], 3, "/weights")).content
    )
    assert answer.headers["content-encoding"] == "zstd"


def test_weights_too_large_for_differences_are_dense(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **difference_plan(limits={"max_norm": 1e30}))
    before = [join(silo, 1) for silo in silos]
    for silo in silos:
        deliver(silo, 1, filled_tensors(LAYOUT, 1e20))
    wait_for(coordinator, federation_id, 1, "published")
    named = join(silos[0], 2)
    assert ask(silos[0], 2, before[0])[0].headers["etag"] == f'"{named}"'
    assert (weights(silos[0], 2, LAYOUT)["b0.q.Q"] == np.float32(1e20)).all()


def test_a_dense_plan_publishes_no_differences(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, **difference_plan("dense"))
    first = [join(silo, 1) for silo in silos]
    play_round(coordinator, silos, 1)
    named = join(silos[0], 2)
    assert ask(silos[0], 2, first[0])[0].headers["etag"] == f'"{named}"'
    with coordinator.database.read() as session:
        rows = select(CodedWeightsRow).where(
            CodedWeightsRow.federation_id == federation_id, CodedWeightsRow.round_number == 2
        )
        assert session.scalars(rows).all() == []


def test_agents_without_differences_get_the_same_weights(second: tuple[str, SecondRound]) -> None:
    _, scene = second
    silo = scene.silos[0]
    answer = silo.http.get(url(silo, 2, "/weights"))
    assert digest_of(answer.content) == scene.second[0]
    assert tensors_of(answer, LAYOUT).keys() == LAYOUT.keys()
