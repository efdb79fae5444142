"""Custom trainers: found by name, checked, and used in place of the built-in loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from client_agent.adapters.base import require_bare
from client_agent.adapters.inject import inject, inject_lora
from client_agent.adapters.provenance import origin_of
from client_agent.errors import LossNotFinite, Stopped
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import collate, pad_id
from client_agent.rounds.train import learning_rate
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.rate_store import RateStore
from client_agent.storage.round_folder import PARTIAL, TRAINER
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.data import SiloData
from client_agent.training.loop import answer_loss, iterate_batches
from client_agent.training.silo import Silo
from client_agent.training.trainer_task import TrainerFailed, TrainerTask
from client_agent.training.trainers import (
    LocalTrainer,
    OpenedTrainer,
    TrainerOptions,
    open_trainer,
)
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.agent_processes import EXAMPLES
from tests.scene.local_training import train_one_round
from tests.scene.tensors import filled_tensors
from tests.unit.client_agent.training.installed import CONSTANT, install

PLAN = TrainingPlan(steps=3, batch_size=4, max_length=64, learning_rate=0.01)
LORA = AdapterPlan(kind="lora", rank=4)


class Plain(LocalTrainer):
    """A trainer whose `train` is a function of the test."""

    def __init__(self, train: Callable[[TrainerTask], Any], rate: float | None = None) -> None:
        self._train = train
        self._rate = rate

    @property
    def learning_rate(self) -> float | None:
        return self._rate

    def train(self, task: TrainerTask) -> Mapping[str, np.ndarray] | Path:
        return cast(Path, self._train(task))


def report_all(task: TrainerTask) -> dict[str, np.ndarray]:
    for step in range(1, task.plan.steps + 1):
        task.report(step, 2.0, 5)
    return task.adapter.state()


def silo_of(base: BaseModel, examples: Sequence[Example], trainer: OpenedTrainer | None) -> Silo:
    data = SiloData(train=tuple(examples[:20]), validation=(), test=tuple(examples[20:]))
    return Silo(base, data, None, trainer=trainer)


def opened(train: Callable[[TrainerTask], Any], name: str = "mine") -> OpenedTrainer:
    return OpenedTrainer(name, TrainerOptions(), Plain(train))


def train_with_trainer(
    silo: Silo,
    folder: Path | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
    plan: AdapterPlan = LORA,
    training: TrainingPlan = PLAN,
    steps: list[tuple[int, float]] | None = None,
    fill: float = 0.01,
) -> TrainingResult:
    with inject(silo.base, plan, {}, gated=False, seed=0) as adapter:
        return train_one_round(
            silo,
            adapter,
            plan,
            training,
            start=filled_tensors(adapter.layout, fill),
            stop=stop,
            checkpoint=TrainingCheckpoint(folder / PARTIAL, 3600.0) if folder is not None else None,
            report=lambda step, done, total: (
                steps.append((step.number, step.loss)) if steps is not None else None
            ),
        )


def test_installed_trainer_trains_and_is_scored_by_tessera(
    tiny: Callable[..., BaseModel],
    examples: Sequence[Example],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(tmp_path, monkeypatch, name="constant", module="constant_trainer", source=CONSTANT)
    trainer = open_trainer("constant", {"add": 0.25})
    steps: list[tuple[int, float]] = []
    result = train_with_trainer(silo_of(tiny(), examples, trainer), steps=steps)
    for name, values in result.adapter.items():
        assert np.allclose(values, result.start[name] + 0.25)
    assert steps == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert result.scores.served["loss"].value != result.scores.trained["loss"].value
    assert result.optimiser == {}
    built_in = train_with_trainer(silo_of(tiny(), examples, None), fill=0.01)
    assert built_in.scores.served == result.scores.served
    assert built_in.optimiser


def raising(task: TrainerTask) -> None:
    task.report(1, 3.0, 5)
    raise RuntimeError("no such expert")


def too_many(task: TrainerTask) -> None:
    task.report(task.plan.steps + 1, 1.0, 5)


def with_infinity(task: TrainerTask) -> dict[str, np.ndarray]:
    state = report_all(task)
    next(iter(state.values()))[0, 0] = np.inf
    return state


def without_one_tensor(task: TrainerTask) -> dict[str, np.ndarray]:
    return dict(islice(report_all(task).items(), 1, None))


def change_base_model(task: TrainerTask) -> dict[str, np.ndarray]:
    with torch.no_grad():
        cast(Any, task.base.model).lm_head.weight.add_(1e-3)
    return report_all(task)


@pytest.mark.parametrize(
    ("train", "trouble"),
    [
        (raising, r"failed after 1 of 3 steps \(RuntimeError\('no such expert'\)\)"),
        (too_many, "step 4 was reported after step 0 of 3"),
        (lambda task: task.adapter.state(), "reported 0 of 3 steps; each one must be"),
        (with_infinity, "returned values that are not finite, in l0.down.A"),
        (without_one_tensor, r"tensors that do not fit the adapter, such as l0.down.A \(4, 48\)"),
        (lambda task: [report_all(task)], "returned a list, neither tensors by name nor a folder"),
        (change_base_model, "changed the base model"),
        (lambda task: (report_all(task), task.folder / "none")[1], "holds no PEFT checkpoint"),
    ],
)
def test_failing_trainer_is_named_and_its_result_discarded(
    tiny: Callable[..., BaseModel],
    examples: Sequence[Example],
    train: Callable[[TrainerTask], Any],
    trouble: str,
) -> None:
    silo = silo_of(tiny(), examples, opened(train))
    with pytest.raises(TrainerFailed, match=rf"round 2: trainer 'mine' .*({trouble}).* the round\s+resumes"):
        train_with_trainer(silo)
    require_bare(silo.base)
    assert not silo.base.model.training


def test_loss_that_is_not_finite_ends_custom_training(
    tiny: Callable[..., BaseModel], examples: Sequence[Example]
) -> None:
    silo = silo_of(tiny(), examples, opened(lambda task: task.report(1, float("nan"), 5)))
    with pytest.raises(LossNotFinite, match="step 1 is nan; lower"):
        train_with_trainer(silo)


def test_stopped_or_failed_trainer_continues_from_its_files(
    tiny: Callable[..., BaseModel], examples: Sequence[Example], tmp_path: Path
) -> None:
    begun: list[int] = []

    def train(task: TrainerTask) -> dict[str, np.ndarray]:
        mark = task.folder / "step"
        begin = int(mark.read_text()) if mark.exists() else 0
        begun.append(begin)
        for step in range(begin + 1, task.plan.steps + 1):
            if task.stop():
                break
            task.report(step, 1.0, 5)
            mark.write_text(str(step))
            if step == 2 and begin == 1:
                raise RuntimeError("out of memory")
        return task.adapter.state()

    silo = silo_of(tiny(), examples, opened(train))
    calls = count()
    with pytest.raises(Stopped):
        train_with_trainer(silo, tmp_path, stop=lambda: next(calls) >= 1)
    with pytest.raises(TrainerFailed, match="out of memory"):
        train_with_trainer(silo, tmp_path)
    train_with_trainer(silo, tmp_path)
    assert begun == [0, 1, 2]
    train_with_trainer(silo, tmp_path, fill=0.02)
    assert begun == [0, 1, 2, 0], "files of a training of other weights"
    assert (tmp_path / TRAINER).stat().st_mode & 0o077 == 0


def with_peft(task: TrainerTask) -> Path:
    """Train peft's model as the own loop trains its adapter."""
    with task.peft_model() as model:
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=task.learning_rate, weight_decay=task.plan.weight_decay)
        batches = iterate_batches(task.texts, task.plan.batch_size, seed=PLAN.seed, round_number=2)
        model.train()
        for step in range(1, task.plan.steps + 1):
            batch = collate(next(batches), pad=pad_id(task.base.tokenizer))
            loss = answer_loss(task.base, batch) / batch.answers
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, task.plan.max_grad_norm)
            optimiser.step()
            optimiser.zero_grad()
            task.report(step, loss.item(), batch.tokens)
        cast(Any, model).save_pretrained(task.folder / "result")
    return task.folder / "result"


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"scale": 2.0, "rslora": True}], ids=["plain", "rslora"])
def test_peft_training_equals_the_built_in_loop(
    tiny: Callable[..., BaseModel], examples: Sequence[Example], changes: dict[str, Any]
) -> None:
    plan = LORA.model_copy(update=changes)
    base = tiny()
    built_in = train_with_trainer(silo_of(base, examples, None), plan=plan)
    peft_state = train_with_trainer(silo_of(base, examples, opened(with_peft)), plan=plan)
    moved = max(np.abs(values - built_in.start[name]).max() for name, values in built_in.adapter.items())
    assert moved > 0.01
    for name, values in built_in.adapter.items():
        assert np.allclose(values, peft_state.adapter[name], atol=2e-5), name
    require_bare(base)


def test_fused_layers_have_no_peft_folder(
    tiny: Callable[..., BaseModel], examples: Sequence[Example]
) -> None:
    silo = silo_of(tiny("phi3"), examples, opened(lambda task: task.peft_folder()))
    with pytest.raises(TrainerFailed, match="is one layer of several roles"):
        train_with_trainer(silo)


def test_trainers_rate_overrides_the_plans(
    tiny: Callable[..., BaseModel], examples: Sequence[Example], tmp_path: Path
) -> None:
    base, rates = tiny(), RateStore(tmp_path)
    origin = origin_of(base, LORA, {}, gated=False, seed=0)
    with inject_lora(base, LORA) as adapter:
        for rate, expected in ((1e-5, 1e-5), (None, 0.01)):
            trainer = OpenedTrainer("mine", TrainerOptions(), Plain(report_all, rate))
            silo = silo_of(base, examples, trainer)
            assert learning_rate(silo, adapter, PLAN, origin, rates, lambda: False) == expected


def test_trainer_of_the_documentation_trains(
    tiny: Callable[..., BaseModel],
    examples: Sequence[Example],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (EXAMPLES.parent / "docs" / "how-to" / "train-on-several-gpus.md").read_text()
    source = re.findall(r'```python title="sgd_trainer.py"\n(.*?)```', page, re.DOTALL)[0]
    install(tmp_path, monkeypatch, name="sgd", module="sgd_trainer", source="")
    (tmp_path / "sgd_trainer.py").write_text(source)
    silo = silo_of(tiny(), examples, open_trainer("sgd", {"momentum": 0.8}))
    losses: list[tuple[int, float]] = []
    result = train_with_trainer(silo, steps=losses)
    assert [number for number, _ in losses] == [1, 2, 3]
    assert any((values != result.start[name]).any() for name, values in result.adapter.items())
