"""Ranks that a CA-PFL client keeps between rounds."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import MEASURES, TRAINED
from tests.scene.agent_pair import Pair
from tests.scene.agent_rounds import layout_of, update_difference


def test_client_drops_ranks_after_two_rounds_below_cut(
    pair: Callable[..., Pair],
) -> None:
    options = {"warm_rounds": 0, "density": 0.3, "cut": 5.0}
    two = pair(rounds={"total": 4, "min_clients": 1}, strategy={"name": "ca_pfl", "options": options})
    folders = [two.run_round("aster")["aster"] for _ in range(3)]
    ranks = [set(json.loads(folder.read(MEASURES))["ranks"].values()) for folder in folders]
    assert ranks[:2] == [{2}, {1}]
    for folder in folders:  # what the coordinator counts is what the client decodes of its own update
        path = f"/v1/federations/{two.federation_id}/rounds/{folder.number}"
        (shown,) = two.served.admin.get(path).json()["clients"]
        change = update_difference(folder)
        modules = [name.removesuffix(".A") for name in change if name.endswith(".A")]
        sent = [change[f"{m}.A"].any(axis=1) | change[f"{m}.B"].any(axis=0) for m in modules]
        assert shown["sent_ranks"] == {"sent": int(np.sum(sent)), "of": 2 * len(modules)}
        assert shown["sent_ranks"]["sent"] <= len(modules), (
            "at least one rank of each module is below the cut"
        )
    last = TrainingResult.read(folders[-1].path / TRAINED)
    assert any(last.optimiser[f"{module}.A.exp_avg"].shape[0] == 1 for module in ("l0.q", "l0.v"))
    assert layout_of(folders[-1])["l0.q.A"][0] == 2  # what is sent has all ranks
    participant = two.members["aster"]
    with adapter_of_round(participant.trainer.silo, participant.workspace.home, 2, "trained") as (adapter, _):
        assert {len(factors.A) for factors in adapter.as_lora().values()} == {1}
    with adapter_of_round(participant.trainer.silo, participant.workspace.home, 2, "served") as (adapter, _):
        assert {len(factors.A) for factors in adapter.as_lora().values()} == {2}
