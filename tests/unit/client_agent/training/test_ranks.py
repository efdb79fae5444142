"""Several processes of torchrun train as one process does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.errors import SettingsUnusable
from client_agent.model.tokens import TokenizedText
from client_agent.rounds.part import obstacle
from client_agent.rounds.strategy import load_strategy
from client_agent.settings import AgentSettings
from client_agent.torchrun import settings_of_rank, torchrun_rank
from client_agent.training.ranks import RanksUnusable, answers_of, require_divisible, shares
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.agent_processes import MODELS, environment
from tests.unit.client_agent.training.two_ranks import train_on_ranks

SCRIPT = Path(__file__).with_name("two_ranks.py")
LORA = {"kind": "lora", "rank": 4, "roles": ["q", "v", "down"]}
PQ = {"kind": "pq", "rank": 4, "blocks": 2, "roles": ["q", "v"]}


def by_torchrun(count: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    # torchrun starts a file, which finds its own folder and not the tests.
    variables = environment() | {"PYTHONPATH": str(SCRIPT.parents[4])}
    return subprocess.run(
        [*command, *map(str, arguments)], env=variables, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "training"),
    [
        (LORA, {"batch_size": 3, "accumulation": 2}),
        (LORA, {"batch_size": 5, "accumulation": 1, "gradient_checkpointing": True}),
        (PQ, {"batch_size": 3, "accumulation": 2}),
    ],
    ids=["whole batches", "parts of a batch", "gated P and Q"],
)
def test_torchrun_of_two_processes_trains_the_same_weights(
    plan: dict[str, Any], training: dict[str, Any], tmp_path: Path
) -> None:
    facts = {"steps": 4, "max_length": 32, "learning_rate": 0.01} | training
    out = tmp_path / "weights.npz"
    done = by_torchrun(2, SCRIPT, MODELS["S"], json.dumps(plan), json.dumps(facts), out)
    assert done.returncode == 0, done.stderr
    state, outcome = train_on_ranks(
        MODELS["S"], AdapterPlan.model_validate(plan), TrainingPlan.model_validate(facts), None
    )
    stored = np.load(out)
    assert np.allclose(stored["losses"], outcome.losses, atol=1e-6)
    assert int(stored["tokens"]) == outcome.tokens
    for name, values in state.items():
        assert np.abs(stored[name] - values).max() < 1e-6, name


def texts(count: int) -> list[TokenizedText]:
    return [TokenizedText((1, n, 2), (False, True, True), ()) for n in range(count)]


@pytest.mark.parametrize(
    ("sizes", "world", "expected"),
    [
        ((2, 2), 2, [[2], [2]]),
        ((2, 2, 2, 2), 2, [[2, 2], [2, 2]]),
        ((5,), 2, [[3], [2]]),
        ((3, 3), 4, [[1, 1], [1, 1], [1, 1], []]),
        ((1,), 3, [[1], [], []]),
    ],
)
def test_texts_of_a_step_are_divided_among_ranks(
    sizes: Sequence[int], world: int, expected: list[list[int]]
) -> None:
    step = [texts(size) for size in sizes]
    parts = shares(step, world)
    assert [[len(batch) for batch in part] for part in parts] == expected
    assert sum(answers_of(part) for part in parts) == answers_of(step) == 2 * sum(sizes)


def test_methods_of_several_adapters_are_not_divided() -> None:
    for name in ("fedmosaic", "ffa_lora", "het_lora", "fedprox"):
        require_divisible(obstacle(load_strategy(name).parts, "torchrun"))
    for name in ("fed_vemoe", "ditto", "fedex_lora", "ca_pfl"):
        with pytest.raises(RanksUnusable, match="which torchrun cannot divide; run the agent without it"):
            require_divisible(obstacle(load_strategy(name).parts, "torchrun"))


def settings(**options: Any) -> AgentSettings:
    return AgentSettings(url="http://127.0.0.1:1", model="m", train="t", **options)


def test_rank_has_its_own_device_and_no_trainer() -> None:
    assert settings_of_rank(settings(device="cpu")).device == "cpu"
    with pytest.raises(SettingsUnusable, match="device cuda:1 under torchrun: set auto"):
        settings_of_rank(settings(device="cuda:1"))
    with pytest.raises(SettingsUnusable, match=r"trainer 'sft' and torchrun: .* use only one of them"):
        settings_of_rank(settings(trainer="sft"))


def test_process_detects_other_ranks_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert torchrun_rank() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert torchrun_rank() == 1
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert torchrun_rank() is None
