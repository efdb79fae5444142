"""A round's training that was stopped resumes, and its file has the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from client_agent.adapters.inject import inject_lora
from client_agent.errors import Stopped
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.rounds.part import Part
from client_agent.storage.round_folder import PARTIAL
from client_agent.strategies.het_lora import Pruning
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_one_round
from tests.scene.tensors import filled_tensors

PLAN = TrainingPlan(steps=5, batch_size=4, max_length=64, learning_rate=0.01)
LORA = AdapterPlan(kind="lora", rank=4)


def train_until(
    silo: Silo,
    folder: Path,
    stop: Callable[[], bool],
    parts: tuple[Part, ...] = (),
    served: str = "served",
    adapter_plan: AdapterPlan = LORA,
) -> bytes:
    checkpoint = TrainingCheckpoint(folder / PARTIAL, 3600.0, belongs_to=served)
    with inject_lora(silo.base, adapter_plan) as adapter:
        start = filled_tensors(adapter.layout, 0.01)
        return train_one_round(
            silo, adapter, adapter_plan, PLAN, start=start, stop=stop, parts=parts, checkpoint=checkpoint
        ).to_bytes()


@pytest.mark.parametrize(
    ("plan", "pruning"),
    [
        (LORA, None),
        (LORA, Pruning(least=1, decay=0.5, strength=0.1)),
        (LORA.model_copy(update={"dropout": 0.2, "rslora": True}), None),
    ],
    ids=["plain", "pruned", "dropout"],
)
def test_stopped_round_resumes_to_the_same_file(
    tiny: Callable[..., BaseModel],
    examples: Sequence[Example],
    tmp_path: Path,
    plan: AdapterPlan,
    pruning: Pruning | None,
) -> None:
    silo = Silo(tiny(), SiloData(train=tuple(examples[:20]), validation=(), test=tuple(examples[20:])), None)
    parts = (pruning,) if pruning is not None else ()
    whole = train_until(silo, tmp_path / "whole", lambda: False, parts, adapter_plan=plan)
    assert not (tmp_path / "whole" / PARTIAL).exists()  # no interval has passed
    calls = count()
    with pytest.raises(Stopped):
        train_until(silo, tmp_path, lambda: next(calls) >= 3, parts, adapter_plan=plan)
    assert (tmp_path / PARTIAL).is_file()
    resumed_steps = count()
    assert train_until(silo, tmp_path, lambda: next(resumed_steps) < 0, parts, adapter_plan=plan) == whole
    assert next(resumed_steps) == PLAN.steps - 3  # `stop` is called before each step


def test_checkpoint_under_other_served_weights_is_ignored(
    tiny: Callable[..., BaseModel], examples: Sequence[Example], tmp_path: Path
) -> None:
    silo = Silo(tiny(), SiloData(train=tuple(examples[:20]), validation=(), test=tuple(examples[20:])), None)
    calls, steps = count(), count()
    with pytest.raises(Stopped):
        train_until(silo, tmp_path, lambda: next(calls) >= 3)
    train_until(silo, tmp_path, lambda: next(steps) < 0, served="others")
    assert next(steps) == PLAN.steps
