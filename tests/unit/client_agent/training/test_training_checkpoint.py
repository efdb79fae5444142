"""Interrupted training resumes at its checkpoint, to the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import safetensors.numpy
import torch

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.adapters.variational.adapter import VariationalAdapter
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.loop import TrainingOutcome
from schemas.messages.federations import AdapterPlan, TrainingPlan
from schemas.strategies.ca_pfl import CaPflOptions
from tests.scene.local_training import train_examples
from tests.scene.models import inject_random_pq
from tests.scene.tensors import filled_tensors
from tests.unit.client_agent.training.checkpointed import DROPOUT, HOUR, LORA, MODEL, PLAN, chat

PQ = AdapterPlan(rank=8, blocks=2)


def lora(base: BaseModel) -> Adapter:
    return inject_lora(base, LORA)


def pq(base: BaseModel) -> Adapter:
    return inject_random_pq(base, PQ, gated=True)


def variational(base: BaseModel) -> Adapter:
    return VariationalAdapter(inject_lora(base, LORA), base, CaPflOptions())


def train_with_checkpoint(
    base: BaseModel,
    make: Callable[[BaseModel], Adapter],
    examples: Sequence[Example],
    file: Path | None,
    *,
    stop_at: int | None = None,
    every_seconds: float = HOUR,
    plan: TrainingPlan = PLAN,
) -> tuple[TrainingOutcome, bytes]:
    """Train until `stop_at` steps are done; return the outcome and all tensors as bytes."""
    done = 0

    def stop() -> bool:
        nonlocal done
        done += 1
        return stop_at is not None and done > stop_at

    checkpoint = TrainingCheckpoint(file, every_seconds) if file is not None else None
    with make(base) as adapter:
        adapter.load(filled_tensors(adapter.layout, 0.01))
        outcome = train_examples(
            base,
            adapter,
            examples,
            plan,
            stop=stop,
            penalty=adapter.penalty(examples, plan.max_length, 1),
            checkpoint=checkpoint,
        )
        tensors = {**adapter.state(), **adapter.private_state(), **outcome.optimiser_state}
        return outcome, safetensors.numpy.save(tensors)


@pytest.mark.slow
@pytest.mark.parametrize("make", [lora, pq, variational], ids=["lora", "gated pq", "variational"])
def test_stopped_training_continues_with_the_same_bytes(
    tiny: Callable[..., BaseModel],
    examples: list[Example],
    tmp_path: Path,
    make: Callable[[BaseModel], Adapter],
) -> None:
    base = tiny(attention_dropout=0.1)
    whole, expected = train_with_checkpoint(base, make, examples, None)
    file = tmp_path / "partial"
    stopped, _ = train_with_checkpoint(base, make, examples, file, stop_at=6)
    assert len(stopped.losses) == 6
    assert file.is_file()
    resumed, tensors = train_with_checkpoint(base, make, examples, file)
    assert resumed.losses == whole.losses
    assert resumed.tokens == whole.tokens
    assert tensors == expected


@pytest.mark.slow
def test_checkpoint_of_another_training_is_ignored(
    tiny: Callable[..., BaseModel], examples: list[Example], tmp_path: Path
) -> None:
    base, file = tiny(), tmp_path / "partial"
    train_with_checkpoint(base, lora, examples, file, stop_at=6)
    for change in ({"learning_rate": 0.02}, {"weight_decay": 0.1}):
        plan = PLAN.model_copy(update=change)
        fresh = train_with_checkpoint(base, lora, examples, None, plan=plan)
        assert train_with_checkpoint(base, lora, examples, file, plan=plan)[1] == fresh[1]
    fewer = examples[:-1]
    assert (
        train_with_checkpoint(base, lora, fewer, file)[1] == train_with_checkpoint(base, lora, fewer, None)[1]
    )


def test_damaged_checkpoint_is_ignored_with_a_warning(
    tiny: Callable[..., BaseModel], examples: list[Example], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base, file = tiny(), tmp_path / "partial"
    train_with_checkpoint(base, lora, examples, file, stop_at=6)
    file.write_bytes(file.read_bytes()[:-100])
    assert (
        train_with_checkpoint(base, lora, examples, file)[1]
        == train_with_checkpoint(base, lora, examples, None)[1]
    )
    assert "is damaged" in caplog.text


KILLED = """
import sys
import torch
from pathlib import Path
from tests.unit.client_agent.training.test_training_checkpoint import killed_training
torch.set_num_threads(1)
killed_training(Path(sys.argv[1]))
"""


def killed_training(file: Path) -> None:
    """Train slowly, and print each finished step."""
    base = load_base_model(str(MODEL), device=torch.device("cpu"))
    base.prefix.store = PrefixStore(file.parent / "prefixes", 2**24)

    def announce() -> bool:
        print("step", flush=True)
        time.sleep(0.05)
        return False

    with inject_lora(base, DROPOUT) as adapter:
        train_examples(
            base,
            adapter,
            chat(),
            PLAN,
            stop=announce,
            checkpoint=TrainingCheckpoint(file, 0.1),
        )


@pytest.mark.slow
def test_killed_training_loses_one_interval_at_most(tmp_path: Path) -> None:
    file = tmp_path / "partial"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    for _ in range(8):  # the eighth is printed before the eighth step: 7 of 10 are done
        assert process.stdout.readline() == "step\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    base = load_base_model(str(MODEL), device=torch.device("cpu"))
    steps: list[int] = []
    results = []
    for checkpoint, prefixes in ((TrainingCheckpoint(file, HOUR), "prefixes"), (None, "fresh")):
        base.prefix.store = PrefixStore(tmp_path / prefixes, 2**24)
        with inject_lora(base, DROPOUT) as adapter:
            outcome = train_examples(
                base,
                adapter,
                chat(),
                PLAN,
                on_step=lambda step: steps.append(step.number),
                checkpoint=checkpoint,
            )
            results.append((outcome.losses, safetensors.numpy.save(adapter.state())))
    assert 3 <= steps[0] <= 8  # the last position is at most an interval and a step old
    assert results[0] == results[1]
