"""A round of a federation whose plan pulls clients to their base models."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.rounds.stored_answers import read_anchors
from client_agent.storage.round_folder import RECEIPT, UPDATE
from client_agent.training.silo import Silo
from tests.scene.agents import QUICK, enrolled, next_brief
from tests.scene.coordinator import Served

ANCHORS = [{"id": word, "prompt": f"rev {word}=", "answer": word[::-1]} for word in ("abc", "xyz")]


def trained_change(served: Served, silo: Silo, folder: Path, weight: float, stack: ExitStack) -> bytes:
    federation_id = served.federation(
        strategy={"name": "fedavg"},
        adapter={"kind": "lora", "rank": 2, "roles": ["v"]},
        training=QUICK | {"anchor_pull": weight},
        wire={"recipe": "dense"},
        rounds={"total": 1, "min_clients": 1},
    )
    path = f"/v1/federations/{federation_id}"
    if weight:
        assert served.admin.put(f"{path}/anchors", json={"anchors": ANCHORS}).status_code == 201
    participant: Participant = enrolled(served, federation_id, silo, folder, stack)
    served.start_federation(federation_id)
    take_part(participant, next_brief(participant))
    assert participant.workspace.rounds.open(1).has(RECEIPT)
    if weight:
        assert len(read_anchors(participant.session.home).anchors) == len(ANCHORS)
    return participant.workspace.rounds.open(1).read(UPDATE)


def test_round_downloads_texts_and_is_pulled(served: Served, silo: Silo, tmp_path: Path) -> None:
    with ExitStack() as stack:
        free, pulled = (
            trained_change(served, silo, tmp_path / str(weight), weight, stack) for weight in (0, 10)
        )
    assert free != pulled
