"""What alignment is for: P and Q trained in one architecture are a start in another, and nothing else is."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_agent.model.alignment import aligned_pack, pivot_pack
from client_agent.model.examples import Example
from client_agent.model.frames import Frame, random_frames
from client_agent.model.inject import inject_pq
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.model.pack import Pack
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import train
from schemas.messages.alignment import Anchor
from schemas.messages.federations import AdapterPlan, AlignmentPlan, TrainingPlan
from schemas.messages.rounds import Metrics

ROOT = Path(__file__).parents[3]
ADAPTER = AdapterPlan()
State = dict[str, np.ndarray]


def drawn(task: str, seed: int, count: int) -> list[Example]:
    sys.path.insert(0, str(ROOT))
    try:
        from examples.tasks import TASKS, draw
    finally:
        sys.path.remove(str(ROOT))
    rng = random.Random(f"transfer:{task}:{seed}")
    return [Example(e.prompt, e.completion) for e in draw(TASKS[task], count, rng)]


def trained(
    base: BaseModel, frames: Mapping[str, Frame], start: State | None, examples: list[Example], steps: int
) -> tuple[State, Metrics]:
    """Train on all examples but the last 96, and score on those."""
    plan = TrainingPlan(steps=steps, batch_size=16, max_length=64)
    with inject_pq(base, ADAPTER, frames, gated=False) as adapter:
        if start is not None:
            adapter.load(start)
        train(base, adapter, examples[:-96], plan, seed=0, round_number=1)
        return adapter.state(), evaluate(base, examples[-96:], max_length=64)


@pytest.fixture(scope="module")
def models() -> tuple[BaseModel, BaseModel]:
    torch.set_num_threads(1)
    small, large = (
        load_base_model(str(ROOT / "examples" / "models" / name), device=torch.device("cpu"))
        for name in ("tiny-s", "tiny-l")
    )
    return small, large


@pytest.fixture(scope="module")
def packs(models: tuple[BaseModel, BaseModel]) -> tuple[Pack, Pack]:
    small, large = models
    records = json.loads((ROOT / "examples" / "anchors.json").read_text())["anchors"]
    anchors = [Anchor.model_validate(record) for record in records]
    plan = AlignmentPlan(pivot=small.slug)
    pivot = pivot_pack(small, anchors, ADAPTER, plan, "test")
    return pivot, aligned_pack(large, small, pivot, anchors, ADAPTER, plan, "test")


@pytest.mark.slow
def test_later_blocks_are_shared_and_their_queries_and_keys_are_not(packs: tuple[Pack, Pack]) -> None:
    selected = set(packs[1].manifest.selected)
    assert {"b3.down", "b3.o", "b3.v", "b2.down", "b2.o"} <= selected
    assert not {"b2.q", "b2.k", "b3.q", "b3.k"} & selected


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["small to large", "large to small"])
def test_an_aligned_start_beats_zero_a_wrong_task_and_random_frames(
    models: tuple[BaseModel, BaseModel], packs: tuple[Pack, Pack], direction: str
) -> None:
    """All at one learning rate: what is compared is the frames, not how fast P may move in them."""
    selected = packs[1].manifest.selected
    of_small, of_large = (
        {name: replace(pack.frames()[name], rate=1.0) for name in selected} for pack in packs
    )
    pairs = [(models[0], of_small), (models[1], of_large)]
    (source, theirs), (target, own) = pairs if direction == "small to large" else reversed(pairs)
    task = drawn("cipher", 0, 64 + 128 + 96)
    teach, learn = task[:64] + task[-96:], task[64:]
    right, learnt = trained(source, theirs, None, teach, 60)
    wrong, _ = trained(source, theirs, None, drawn("label", 0, 64 + 96), 60)
    blind, _ = trained(source, random_frames(source, ADAPTER, 0), None, teach, 60)
    assert learnt.exact_match > 0.6
    after = {
        "aligned": trained(target, own, right, learn, 10)[1],
        "zero": trained(target, own, None, learn, 10)[1],
        "wrong task": trained(target, own, wrong, learn, 10)[1],
        "random frames": trained(target, random_frames(target, ADAPTER, 0), blind, learn, 10)[1],
    }
    print({name: (round(m.loss, 3), round(m.exact_match, 3)) for name, m in after.items()})
    for name in ("zero", "wrong task", "random frames"):
        assert after["aligned"].loss < after[name].loss, name
        assert after["aligned"].exact_match > after[name].exact_match, name
