"""Relevance beside averages on trained models: tasks in common, and tasks that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from studies import Study, StudySilo, simulate
from tests.scene.agent_processes import EXAMPLES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DATA = EXAMPLES / "studies" / "data"


def final_losses(folder: Path, silos_by_task: Mapping[str, int], rounds: int) -> Mapping[str, float]:
    """Return the mean test loss of averages and of relevance, both as recommended, by method."""
    silos = [
        StudySilo(
            name=f"{task}-{number}",
            model=str(EXAMPLES / "models" / "tiny-s"),
            train=str(DATA / task / "train.jsonl"),
            test=str(DATA / task / "test.jsonl"),
            examples=12,
        )
        for task, count in silos_by_task.items()
        for number in range(count)
    ]
    plan = {
        "rounds": {"total": rounds},
        "training": {"learning_rate": 0.01, "schedule": "linear", "max_length": 64},
    }
    study = Study(silo=silos, plan=plan, seeds=[0], tests=64, validation=0).named("tasks")
    return simulate(study, methods=["fedit", "fedmosaic_lora"], out=folder / "runs").losses


def test_relevance_keeps_up_on_a_common_task(tmp_path: Path) -> None:
    losses = final_losses(tmp_path, {"cipher": 5}, rounds=5)
    # Training alone ends above .5. Once, three of five silos listened to nobody, and ended at .9 in the mean.
    assert losses["fedit"] < 0.1
    assert losses["fedmosaic_lora"] < 0.2


def test_relevance_separates_tasks_that_contradict(tmp_path: Path) -> None:
    losses = final_losses(tmp_path, {"cipher": 3, "cipher_b": 3}, rounds=4)
    assert losses["fedmosaic_lora"] < 0.3
    assert losses["fedit"] > 3 * losses["fedmosaic_lora"]
