"""Transfer of P and Q between architectures: alignment packs help, random and scrambled frames do not."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import torch

from client_agent.alignment.fit_packs import aligned_pack, pivot_pack, random_pack
from client_agent.alignment.pack import Pack
from client_agent.alignment.transfer_test import (
    TARGET_STEPS,
    TASKS,
    Trial,
    require_testable,
    run_transfer_test,
    sides,
)
from client_agent.errors import AlignmentImpossible, Stopped
from client_agent.model.loading import BaseModel, load_base_model
from schemas.maths.adapter import block_modules
from schemas.maths.paired_test import spread
from schemas.messages.alignment import Acceptance, Anchor
from schemas.messages.federations import AdapterPlan, AlignmentPlan, TrainingPlan

EXAMPLES = Path(__file__).parents[4] / "examples"
RECORDS = json.loads((EXAMPLES / "anchors.json").read_text())["anchors"]
ANCHORS = [Anchor.model_validate(record) for record in RECORDS]
ADAPTER = AdapterPlan()
TRAINING = TrainingPlan(max_length=64)
DIGEST = "sha256:" + "0" * 64


def shipped(name: str) -> BaseModel:
    return load_base_model(str(EXAMPLES / "models" / name), device=torch.device("cpu"))


@pytest.fixture(scope="module")
def pivot() -> tuple[BaseModel, Pack]:
    torch.set_num_threads(1)
    base = shipped("tiny-s")
    return base, pivot_pack(base, ANCHORS, ADAPTER, AlignmentPlan(pivot=base.slug), "test")


@pytest.fixture(scope="module")
def pivot_on_few_anchors() -> tuple[BaseModel, Pack]:
    """The pivot on few anchors, for tests that need no good frames."""
    base = shipped("tiny-s")
    return base, pivot_pack(base, ANCHORS[:64], ADAPTER, AlignmentPlan(pivot=base.slug), "test")


def aligned(base: BaseModel, pivot: tuple[BaseModel, Pack]) -> Pack:
    return aligned_pack(base, *pivot, ANCHORS, ADAPTER, AlignmentPlan(pivot=pivot[0].slug), "test")


def figures(base: BaseModel, pack: Pack, pivot: tuple[BaseModel, Pack]) -> Acceptance:
    trial = Trial(ADAPTER, TRAINING, ANCHORS, seed=0)
    base_side, target = sides(base, pack, *pivot, trial)
    return run_transfer_test(base_side, target, trial, pack=DIGEST)


@pytest.fixture(scope="module")
def shared(pivot: tuple[BaseModel, Pack]) -> set[str]:
    """The (block, role)s that tiny-l shares with the pivot."""
    return set(aligned(shipped("tiny-l"), pivot).manifest.selected)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_later_blocks_share_outputs_but_not_attention_queries(shared: set[str]) -> None:
    assert {"b3.down", "b3.o", "b3.v", "b2.down", "b2.o"} <= shared
    assert not {"b2.q", "b2.k", "b3.q", "b3.k"} & shared


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("study", "method"),
    [
        ("late_cross", "shared_modules"),
        ("six_alone_in_architecture", "all_in_shared_modules"),
        ("six_alone_in_architecture", "alone_in_shared_modules"),
    ],
)
def test_studies_target_the_modules_that_packs_share(shared: set[str], study: str, method: str) -> None:
    tables = tomllib.loads((EXAMPLES / "studies" / f"{study}.toml").read_text())
    roles = tables["plan"]["adapter"]["roles"]
    named = tables["method"][method]["adapter"]["target_modules"]
    assert named == [name for name in block_modules(ADAPTER.blocks, roles) if name in shared]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["tiny-l", "tiny-q"])
def test_shipped_models_help_each_other_in_both_directions(pivot: tuple[BaseModel, Pack], name: str) -> None:
    """`tessera agent alignment-test` on the shipped models, whose tokenizers differ in the case of tiny-q."""
    base = shipped(name)
    result = figures(base, aligned(base, pivot), pivot)
    print(result.model_dump_json(indent=1))
    assert result.steps == TARGET_STEPS
    assert [(d.source, d.target) for d in result.directions] == [
        (pivot[0].slug, base.slug),
        (base.slug, pivot[0].slug),
    ]
    for direction in result.directions:
        assert spread(direction.learnt.exact_match)[0] > 0.3
        right = direction.endings["right"]
        for name_of_start in ("zero", "wrong_task", "random_frames"):
            control = direction.endings[name_of_start]
            assert direction.beats(name_of_start), (direction.source, name_of_start)
            assert spread(right.exact_match)[0] > spread(control.exact_match)[0] + 0.1
    assert result.verdict == "passed"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pack_with_scrambled_frames_fails(pivot: tuple[BaseModel, Pack]) -> None:
    base = shipped("tiny-l")
    pack = aligned(base, pivot)
    generator = torch.Generator().manual_seed(0)
    scrambled = {
        name: torch.tensor(values)[:, torch.randperm(values.shape[1], generator=generator)].numpy()
        if name.endswith(".A")
        else values
        for name, values in pack.tensors.items()
    }
    assert figures(base, Pack(scrambled, pack.manifest), pivot).verdict == "failed"


def test_pivot_and_empty_packs_are_not_testable(pivot_on_few_anchors: tuple[BaseModel, Pack]) -> None:
    base, pivots_pack = pivot_on_few_anchors
    trial = Trial(ADAPTER, TRAINING, ANCHORS, seed=0)
    with pytest.raises(AlignmentImpossible, match="is the pivot"):
        sides(base, pivots_pack, base, pivots_pack, trial)
    empty = Pack({}, pivots_pack.manifest.model_copy(update={"selected": []}))
    with pytest.raises(AlignmentImpossible, match="nothing to test"):
        sides(shipped("tiny-l"), empty, base, pivots_pack, trial)


def test_random_frames_are_not_tested_against_random_frames(
    pivot_on_few_anchors: tuple[BaseModel, Pack],
) -> None:
    plan = AlignmentPlan(pivot=pivot_on_few_anchors[0].slug, frames="random")
    with pytest.raises(AlignmentImpossible, match="the control itself"):
        require_testable(shipped("tiny-l"), plan)


def test_packs_of_other_models_or_plans_are_named(pivot_on_few_anchors: tuple[BaseModel, Pack]) -> None:
    base, pivots_pack = pivot_on_few_anchors
    target = shipped("tiny-l")
    random_frames_pack = random_pack(target, ADAPTER, AlignmentPlan(pivot=base.slug), "test")
    manifest = random_frames_pack.manifest.model_copy(
        update={"alignment_set": pivots_pack.manifest.alignment_set}
    )
    pack = Pack(random_frames_pack.tensors, manifest)
    fewer = Trial(AdapterPlan(roles=("v",)), TRAINING, ANCHORS, seed=0)
    with pytest.raises(AlignmentImpossible, match=rf"{target.slug} has frames of b0\.q, .* has roles v "):
        sides(target, pack, base, pivots_pack, fewer)
    foreign = Pack(random_frames_pack.tensors, manifest.model_copy(update={"base_model": base.slug}))
    with pytest.raises(AlignmentImpossible, match=f"is of {base.slug}, and the model here is {target.slug}"):
        sides(target, foreign, base, pivots_pack, Trial(ADAPTER, TRAINING, ANCHORS, seed=0))


def test_schedule_and_accumulation_of_the_plan_are_dropped() -> None:
    """A warm-up of 1,000 steps would never end, 64 batches at a time would take 64 times as long."""
    plan = TrainingPlan(
        steps=2000, warmup_steps=1000, schedule="cosine", accumulation=64, weight_decay=0.1, seed=7
    ).model_copy(update={"learning_rate": 0.02, "max_length": 64, "gradient_checkpointing": True})
    trial = Trial(ADAPTER, plan, ANCHORS, seed=3, steps=5)
    common = {"max_length": 64, "gradient_checkpointing": True, "seed": 3}
    assert trial.plan(60, 16) == TrainingPlan(steps=60, batch_size=16, **common)
    assert trial.source_rate == 0.02
    assert Trial(ADAPTER, TrainingPlan(), ANCHORS, seed=3).source_rate == 0.01


def test_pseudo_tasks_have_their_own_random_frames(pivot_on_few_anchors: tuple[BaseModel, Pack]) -> None:
    base, pivots_pack = pivot_on_few_anchors
    target = shipped("tiny-l")
    random_frames_pack = random_pack(target, ADAPTER, AlignmentPlan(pivot=base.slug), "test")
    manifest = random_frames_pack.manifest.model_copy(
        update={"alignment_set": pivots_pack.manifest.alignment_set}
    )
    trial = Trial(ADAPTER, TRAINING, ANCHORS, seed=0)
    for side in sides(target, Pack(random_frames_pack.tensors, manifest), base, pivots_pack, trial):
        drawn = {frames["b0.v"].A.tobytes() for frames in side.random}
        assert len(side.random) == len(drawn) == TASKS
        assert all(frames.keys() == side.frames.keys() for frames in side.random)


def test_transfer_test_counts_its_steps_and_stops(pivot_on_few_anchors: tuple[BaseModel, Pack]) -> None:
    base, pivots_pack = pivot_on_few_anchors
    reports: list[tuple[str, int, int]] = []
    trial = Trial(ADAPTER, TRAINING, ANCHORS[:64], seed=0, steps=1)
    target = shipped("tiny-l")
    random_frames_pack = random_pack(target, ADAPTER, AlignmentPlan(pivot=base.slug), "test")
    manifest = random_frames_pack.manifest.model_copy(
        update={"alignment_set": pivots_pack.manifest.alignment_set}
    )
    base_side, pivot_side = sides(
        target, Pack(random_frames_pack.tensors, manifest), base, pivots_pack, trial
    )
    with pytest.raises(Stopped):
        run_transfer_test(
            base_side,
            pivot_side,
            trial,
            pack=DIGEST,
            progress=lambda *report: reports.append(report),
            stop=lambda: len(reports) >= 2,
        )
    assert reports == [("acceptance test", done, 2 * TASKS * (3 * 60 + 4)) for done in (1, 2)]
