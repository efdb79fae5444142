"""The pull to the bare base model: zero for no adapter, and a bound of what training forgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from client_agent.adapters.base import Adapter, set_aside
from client_agent.adapters.inject import inject_lora
from client_agent.anchor_pull import pull
from client_agent.anchor_pull.part import AnchorPull, NoAnchors
from client_agent.anchor_pull.pull import pull_to_bare
from client_agent.errors import PlanUnusable, Stopped
from client_agent.model.examples import Example, encode_for
from client_agent.model.forward import hidden_states
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import collate, pad_id
from client_agent.rounds.part import obstacle
from client_agent.rounds.planned_parts import with_planned
from client_agent.rounds.strategy import load_strategy
from client_agent.storage.round_folder import PARTIAL
from client_agent.strategies.ditto import PersonalAdapter
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.messages.adapter_plan import AdapterPlan
from schemas.messages.alignment import Anchor
from schemas.messages.federations import TrainingPlan
from tests.scene.agent_commands import tessera
from tests.scene.local_training import losses_along, train_one_round
from tests.scene.models import inject_random_pq
from tests.scene.silo_config import config

WORDS = ("abc", "xyz", "mnop", "qr", "stu", "vw")
ANCHORS = tuple(Anchor(id=word, prompt=f"rev {word}=", answer=word[::-1]) for word in WORDS)
PLAN = TrainingPlan(steps=6, batch_size=4, max_length=64, learning_rate=0.01)
LORA = AdapterPlan(kind="lora", rank=2, roles=("v", "down"))
PQ = AdapterPlan(rank=4, blocks=2)
BESIDE = AdapterPlan(rank=4, blocks=2, private_rank=2, same_architecture_rank=0)


@pytest.fixture(params=["lora", "pq", "pq and lora", "gated"])
def adapted(
    request: pytest.FixtureRequest, tiny: Callable[..., BaseModel]
) -> Iterator[tuple[BaseModel, Adapter]]:
    base = tiny()
    if request.param == "lora":
        injected: Adapter = inject_lora(base, LORA)
    elif request.param == "pq and lora":
        injected = inject_random_pq(base, BESIDE)
    else:
        injected = inject_random_pq(base, PQ, gated=request.param == "gated")
    with injected as adapter:
        yield base, adapter


def disturb(adapter: Adapter) -> None:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in adapter.named_parameters().values():
            parameter.add_(0.1 * torch.randn_like(parameter))


def test_untrained_adapter_is_not_pulled(adapted: tuple[BaseModel, Adapter]) -> None:
    base, adapter = adapted
    penalty = pull_to_bare(base, ANCHORS, 1.0, PLAN)
    assert abs(penalty(adapter.named_parameters()).item()) < 1e-6


def test_pull_is_the_divergence_from_the_bare_model(adapted: tuple[BaseModel, Adapter]) -> None:
    base, adapter = adapted
    disturb(adapter)
    texts = encode_for(base, [Example("", ANCHORS[0].prompt + ANCHORS[0].answer)], 64)
    batch = collate(texts, pad=pad_id(base.tokenizer))

    def log_shares() -> torch.Tensor:
        hidden = hidden_states(base, batch)[0, :-1]
        return nnf.log_softmax(base.parts.logits(base.model, hidden).float(), dim=-1)

    with torch.no_grad():
        trained = log_shares()
        with set_aside(base):
            bare = log_shares()
    expected = float((bare.exp() * (bare - trained)).sum(dim=1).mean())
    penalty = pull_to_bare(base, ANCHORS[:1], 2.0, PLAN)
    assert penalty(adapter.named_parameters()).item() == pytest.approx(2 * expected, rel=1e-4)
    assert expected > 1e-4


def test_steps_along_the_pull_restore_the_model(adapted: tuple[BaseModel, Adapter]) -> None:
    base, adapter = adapted
    disturb(adapter)
    losses = losses_along(pull_to_bare(base, ANCHORS[:4], 1.0, PLAN), adapter, 0.02)
    assert losses[-1] < 0.3 * losses[0]


def test_dropout_of_the_base_model_is_no_divergence(tiny: Callable[..., BaseModel]) -> None:
    base = tiny("gpt2", resid_pdrop=0.5, embd_pdrop=0.5)
    with inject_lora(base, LORA.model_copy(update={"dropout": 0.5})) as adapter:
        base.model.train()
        penalty = pull_to_bare(base, ANCHORS, 1.0, PLAN)
        first = torch.get_rng_state()
        assert abs(penalty(adapter.named_parameters()).item()) < 1e-6
        assert base.model.training
        assert not torch.equal(torch.get_rng_state(), first)  # the next step draws other texts
        base.model.eval()


def test_many_places_are_thinned(tiny: Callable[..., BaseModel], monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny()
    monkeypatch.setattr(pull, "MOST_PLACES", 5)
    texts = encode_for(base, [Example("", "rev abcdef=")] * 2, 64)
    batch = collate(texts, pad=pad_id(base.tokenizer))
    places = pull._places(batch)
    assert len(places) == 5
    assert (batch.targets.flatten()[places] >= 0).all()
    with inject_lora(base, LORA) as adapter:
        disturb(adapter)
        assert pull_to_bare(base, ANCHORS, 1.0, PLAN)(adapter.named_parameters()).item() > 0


def silo_of(base: BaseModel, examples: Sequence[Example]) -> Silo:
    return Silo(base, SiloData(tuple(examples[:20]), (), tuple(examples[20:])), None)


def trained(
    silo: Silo,
    weight: float,
    folder: Path,
    stop: Callable[[], bool] = lambda: False,
    *others: PersonalAdapter,
) -> bytes:
    parts = with_planned(others, PLAN.model_copy(update={"anchor_pull": weight}), ANCHORS)
    checkpoint = TrainingCheckpoint(folder / PARTIAL, 3600.0, belongs_to="served")
    with inject_lora(silo.base, LORA) as inner:
        adapter: Adapter = inner
        for part in parts:
            adapter = part.wrap(adapter, silo.base)
        start = {name: np.zeros(shape, np.float32) for name, shape in adapter.layout.items()}
        result = train_one_round(
            silo, adapter, LORA, PLAN, start=start, stop=stop, parts=parts, checkpoint=checkpoint
        )
    return result.to_bytes()


def test_pulled_training_resumes_to_the_same_bytes(
    tiny: Callable[..., BaseModel], examples: Sequence[Example], tmp_path: Path
) -> None:
    silo = silo_of(tiny(), examples)
    whole, calls = trained(silo, 1.0, tmp_path / "whole"), count()
    assert whole != trained(silo, 0.0, tmp_path / "free")
    with pytest.raises(Stopped):
        trained(silo, 1.0, tmp_path, lambda: next(calls) >= 3)
    assert trained(silo, 1.0, tmp_path) == whole


def test_pull_acts_on_both_adapters_of_ditto(
    tiny: Callable[..., BaseModel], examples: Sequence[Example], tmp_path: Path
) -> None:
    silo, ditto = silo_of(tiny(), examples), PersonalAdapter(0.1)
    free, pulled = (
        trained(silo, weight, tmp_path / f"{weight}", lambda: False, ditto) for weight in (0.0, 1.0)
    )
    assert free != pulled


def test_strong_pull_bounds_what_is_forgotten(
    tiny: Callable[..., BaseModel], examples: Sequence[Example]
) -> None:
    base = tiny()
    silo = silo_of(base, examples)
    divergences = []
    for weight in (0.0, 10.0):
        parts = with_planned((), PLAN.model_copy(update={"anchor_pull": weight}), ANCHORS)
        with inject_lora(base, LORA) as adapter:
            start = {name: np.zeros(shape, np.float32) for name, shape in adapter.layout.items()}
            train_one_round(silo, adapter, LORA, PLAN, start=start, parts=parts)
            torch.manual_seed(0)
            with torch.no_grad():
                # `parameters` are not read: a pull is computed from the model.
                divergences.append(float(pull_to_bare(base, ANCHORS[:4], 1.0, PLAN)({"": nn.Parameter()})))
    free, pulled = divergences
    assert pulled < 0.5 * free


def test_training_without_texts_is_refused(
    tiny: Callable[..., BaseModel], examples: Sequence[Example]
) -> None:
    silo, plan = silo_of(tiny(), examples), PLAN.model_copy(update={"anchor_pull": 1.0})
    with inject_lora(silo.base, LORA) as adapter, pytest.raises(NoAnchors, match="pass them with --anchors"):
        train_one_round(silo, adapter, LORA, plan, parts=with_planned((), plan))


def test_bank_of_experts_refuses_the_pull() -> None:
    plan = PLAN.model_copy(update={"anchor_pull": 1.0})
    with pytest.raises(PlanUnusable, match="trains experts of a bank, in steps that take no further loss"):
        with_planned(load_strategy("fed_vemoe").parts, plan)


def test_pull_suits_private_steps_and_torchrun() -> None:
    parts = with_planned((), PLAN.model_copy(update={"anchor_pull": 1.0}))
    assert isinstance(parts[0], AnchorPull)
    assert obstacle(parts, "private steps") is obstacle(parts, "torchrun") is None
    assert obstacle(parts, "a trainer") == "pulls its steps to the bare base model"
    assert with_planned((), PLAN) == ()


def test_command_needs_a_file_of_texts(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"name": "f", "strategy": {"name": "fedavg"}, "training": {"anchor_pull": 0.1}}')
    refused = tessera("train", "--config", config(tmp_path), "--plan", plan)
    assert refused.exit_code == 1
    assert "pass them with --anchors" in refused.output
    wrong = tessera("train", "--config", config(tmp_path), "--plan", plan, "--anchors", plan)
    assert wrong.exit_code == 1
    assert "is not a file of anchor texts" in wrong.output
