"""Federations without bias end to end, and stored plans from before this field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update

from client_agent.rounds.served_weights import read_weights
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import TRAINED, WEIGHTS
from coordinator.db.tables.federations import FederationRow
from coordinator.federations import store
from schemas.maths.adapter import pq_layout
from tests.scene.coordinator import Served
from tests.unit.client_agent.rounds.test_relevance_over_lora import NAMES, take_part

ADAPTER = {"rank": 4, "blocks": 2, "roles": ["v", "down"]}
MODULES = ("b0.v", "b0.down", "b1.v", "b1.down")
OPTIONS = {"min_relevance": None, "guard": "off"}
SHARES = {"replace": 0.5, "gate": 0.0}
"""The share of a client's own update in what it is served."""


def federation(served: Served, mix: str, **adapter: bool) -> str:
    return served.federation(
        strategy={"name": "fedmosaic", "options": OPTIONS | {"mix": mix}},
        adapter=ADAPTER | adapter,
        rounds={"total": 2, "min_clients": 2, "collect_seconds": 60},
        training={"steps": 2, "max_length": 64, "learning_rate": 0.01},
        signature={"probe_examples": 4},
        scores={"examples": 8},
        wire={"recipe": "dense", "weights_recipe": "dense"},
    )


def assert_mixtures_are_served(
    served: Served, federation_id: str, folder: Path, mix: str, *, bias: bool
) -> None:
    """Take part in both rounds; check that both sides have the layout, and that mixtures are served."""
    layout = pq_layout(MODULES, 4, bias=bias)
    served.start_federation(federation_id)
    agents = take_part(served, federation_id, folder)
    for name, peer in (NAMES, NAMES[::-1]):
        rounds = {member: agents[member].workspace.rounds for member in NAMES}
        trained, sent = (
            TrainingResult.from_bytes(rounds[member].open(1).read(TRAINED)).adapter for member in (name, peer)
        )
        assert {tensor: values.shape for tensor, values in sent.items()} == layout
        assert all(values.any() for values in sent.values())
        for tensor, values in read_weights(rounds[name].open(2).read(WEIGHTS), layout).items():
            mixed = SHARES[mix] * trained[tensor] + (1 - SHARES[mix]) * sent[tensor]
            np.testing.assert_allclose(values, mixed, rtol=1e-5, atol=1e-7)
        assert (agents[name].workspace.home / "final_weights.safetensors").is_file()


@pytest.mark.parametrize("mix", ["replace", "gate"])
def test_agents_train_send_and_receive_p_only(mix: str, served: Served, tmp_path: Path) -> None:
    federation_id = federation(served, mix, bias=False)
    assert served.admin.get(f"/v1/federations/{federation_id}").json()["plan"]["adapter"]["bias"] is False
    assert_mixtures_are_served(served, federation_id, tmp_path, mix, bias=False)


def test_stored_plan_without_bias_field_trains_q(served: Served, tmp_path: Path) -> None:
    federation_id = federation(served, "replace")
    with served.database.write() as session:
        plan = dict(store.federation(session, federation_id).plan)
        plan["adapter"] = {name: value for name, value in plan["adapter"].items() if name != "bias"}
        session.execute(update(FederationRow).where(FederationRow.id == federation_id).values(plan=plan))
    assert_mixtures_are_served(served, federation_id, tmp_path, "replace", bias=True)
