"""Weights rebuilt from a difference: exact to the bit, or downloaded whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from client_agent.errors import DownloadDamaged
from client_agent.identity.membership import read_key
from client_agent.rounds.final_weights import finish
from client_agent.rounds.steps import take_part
from client_agent.rounds.weights_difference import earlier_weights
from client_agent.storage.round_folder import BASE, FINAL_WEIGHTS, RECEIPT, WEIGHTS, RoundFolder
from client_agent.transport.client import CoordinatorApi
from schemas.messages.rounds import FinishedBrief
from schemas.wire.digests import digest_of, to_field
from tests.scene.agent_rounds import LORA, PQ, SERVED, LoneSilo, killed_at_write
from tests.scene.agents import Enrolled
from tests.scene.coordinator import Served
from tests.scene.waiting import wait_until

INT8 = {"weights_recipe": "int8"}


def served_whole(scene: LoneSilo, number: int) -> bytes:
    return scene.participant.session.api.weights(scene.federation_id, number).body


def bytes_down(scene: LoneSilo, number: int) -> int:
    return int(scene.served.rounds(scene.federation_id)[number - 1]["bytes"]["down"])


@pytest.mark.parametrize(
    ("adapter", "wire"),
    [
        (PQ | {"rank": 32}, INT8),
        (LORA, INT8),
        (LORA, {"weights_recipe": "int4"}),
        (LORA, INT8 | {"recipe": SERVED}),
        (PQ, INT8 | {"recipe": "dense"}),
    ],
    ids=["pq", "lora", "int4", "lora against served", "dense updates"],
)
def test_agent_rebuilds_exactly_the_weights_of_its_manifest(
    served: Served, participant: Enrolled, adapter: dict[str, object], wire: dict[str, object]
) -> None:
    scene = LoneSilo(served, participant, adapter=adapter, wire=wire)
    first = scene.run_rounds()
    assert bytes_down(scene, 1) < 1500 < len(first.read(WEIGHTS)) + 1000  # zeros
    for number in (2, 3):
        folder = scene.run_rounds()
        down = bytes_down(scene, number)
        assert folder.read(WEIGHTS) == served_whole(scene, number)
        assert folder.base == digest_of(folder.read(WEIGHTS))
        assert down < 0.6 * len(folder.read(WEIGHTS)) + 600
        assert folder.has(RECEIPT)


def lose(folder: RoundFolder) -> None:
    folder.forget(WEIGHTS)


def damage(folder: RoundFolder) -> None:
    body = folder.read(WEIGHTS)
    folder.write(WEIGHTS, body[:-1] + bytes([body[-1] ^ 1]))


def truncate(folder: RoundFolder) -> None:
    folder.write(WEIGHTS, folder.read(WEIGHTS)[:100])


@pytest.mark.parametrize("change", [lose, damage, truncate])
def test_lost_or_damaged_weights_are_downloaded_whole(
    served: Served, participant: Enrolled, change: Callable[[RoundFolder], None]
) -> None:
    scene = LoneSilo(served, participant, wire=INT8)
    change(scene.run_rounds())
    assert earlier_weights(scene.participant.workspace.rounds, 2) is None
    folder = scene.run_rounds()
    assert folder.read(WEIGHTS) == served_whole(scene, 2)
    assert earlier_weights(scene.participant.workspace.rounds, 3) is not None
    scene.run_rounds()
    assert bytes_down(scene, 3) < 0.6 * len(folder.read(WEIGHTS)) + 600


def test_weights_of_another_round_are_no_reference(served: Served, participant: Enrolled) -> None:
    """A backup of the silo from a round before."""
    scene = LoneSilo(served, participant, wire=INT8)
    first, second = scene.run_rounds(), scene.run_rounds()
    for file in (WEIGHTS, BASE):
        second.write(file, first.read(file))
    assert scene.run_rounds().read(WEIGHTS) == served_whole(scene, 3)


class ChangedDifferences(httpx.HTTPTransport):
    """A proxy that changes the differences of weights."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self._change = change

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if "against=" not in request.headers.get("Accept", ""):
            return answer
        body = self._change(b"".join(answer.stream))  # type: ignore[arg-type]
        headers = dict(answer.headers) | {"repr-digest": to_field(digest_of(body))}
        headers["content-length"] = str(len(body))
        return httpx.Response(answer.status_code, headers=headers, stream=httpx.ByteStream(body))


def flipped(body: bytes) -> bytes:
    return body[:-9] + bytes([body[-9] ^ 1]) + body[-8:]


def cut(body: bytes) -> bytes:
    return body[:-20]


def emptied(_: bytes) -> bytes:
    return b""


def api_through(scene: LoneSilo, transport: httpx.BaseTransport) -> CoordinatorApi:
    participant = scene.participant
    return CoordinatorApi(
        scene.served.url,
        key=read_key(participant.workspace.folder),
        server_key=participant.session.server_key,
        deadline_seconds=5,
        sleep=lambda _: None,
        transport=transport,
    )


@pytest.mark.parametrize("change", [flipped, cut, emptied])
def test_changed_difference_is_replaced_by_dense_weights(
    served: Served,
    participant: Enrolled,
    change: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = LoneSilo(served, participant, wire=INT8)
    scene.run_rounds()
    agent, honest = scene.participant, scene.participant.session.api
    with api_through(scene, ChangedDifferences(change)) as agent.session.api:
        assert take_part(agent, scene.brief())
    agent.session.api = honest
    assert "downloading dense" in caplog.text
    assert agent.workspace.rounds.open(2).read(WEIGHTS) == served_whole(scene, 2)


@pytest.mark.parametrize("after", [False, True], ids=["before the file", "after the file"])
def test_agent_killed_at_weights_write_rebuilds_them(
    served: Served, participant: Enrolled, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    scene = LoneSilo(served, participant, wire=INT8)
    scene.run_rounds()
    with killed_at_write(monkeypatch, WEIGHTS, is_written=after):
        take_part(scene.participant, scene.brief())
    folder = scene.run_rounds()
    assert folder.number == 2
    assert folder.read(WEIGHTS) == served_whole(scene, 2)
    assert scene.run_rounds().read(WEIGHTS) == served_whole(scene, 3)


def finished_brief(scene: LoneSilo) -> FinishedBrief:
    def find() -> FinishedBrief | None:
        brief = scene.participant.session.api.current_round(scene.federation_id)
        return brief if isinstance(brief, FinishedBrief) else None

    return wait_until(find)


@pytest.mark.parametrize("change", [None, lose, damage])
def test_final_weights_are_rebuilt_from_a_difference(
    served: Served, participant: Enrolled, change: Callable[[RoundFolder], None] | None
) -> None:
    wire: dict[str, Any] = {"wire": INT8, "rounds": {"total": 2, "min_clients": 1}}
    scene = LoneSilo(served, participant, **wire)
    folder = scene.run_rounds(2)
    brief = finished_brief(scene)
    if change is not None:
        change(folder)
    finish(scene.participant, brief)
    content = (scene.participant.workspace.home / FINAL_WEIGHTS).read_bytes()
    assert content == served_whole(scene, 3)
    assert brief.weights is not None
    assert digest_of(content) == brief.weights.digest


def test_final_weights_of_another_digest_are_refused(served: Served, participant: Enrolled) -> None:
    scene = LoneSilo(served, participant, wire=INT8, rounds={"total": 1, "min_clients": 1})
    scene.run_rounds()
    brief = finished_brief(scene)

    class AlwaysWhole(ChangedDifferences):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/weights"):
                request.headers["Accept"] += ";against=none"
            return super().handle_request(request)

    with (
        api_through(scene, AlwaysWhole(flipped)) as scene.participant.session.api,
        pytest.raises(DownloadDamaged),
    ):
        finish(scene.participant, brief)
