"""The probe set and its losses: held out, equal for all candidates, computed once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from client_agent.adapters.expert_lora import ExpertLora
from client_agent.errors import LossNotFinite
from client_agent.experts.probe_set import Prober, probe_texts
from client_agent.experts.responsibilities import responsibilities, uniform
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.training.data import MIN_PROBE, SiloData, with_probe
from client_agent.training.evaluate import mean_loss
from schemas.messages.federations import AdapterPlan
from tests.scene.tensors import random_tensors

PLAN = AdapterPlan(kind="lora", rank=2, roles=("q", "down"), dropout=0.3)


def rows(count: int, start: int = 0) -> tuple[Example, ...]:
    return tuple(Example(f"p{i}=", f"c{i}") for i in range(start, start + count))


def keys(examples: tuple[Example, ...]) -> set[str]:
    return {example.key for example in examples}


@pytest.mark.parametrize(("count", "most"), [(60, 64), (400, 64), (400, 16)])
def test_probe_set_excludes_training_and_test_examples(count: int, most: int) -> None:
    """The reference probed training batches (row 14), and trained on most of what it validated (defect 6)."""
    held_out = rows(8)  # also among the training examples, in a file of the user's own
    examples = (*rows(count), *rows(count))  # each twice
    data = with_probe(SiloData(examples, validation=held_out[:4], test=held_out[4:]), most)
    assert MIN_PROBE <= len(keys(data.probe)) <= min(1.6 * most, count / 3)
    assert not keys(data.probe) & keys((*data.train, *data.validation, *data.test))
    assert sorted(keys(data.probe) | keys(data.train)) == sorted(keys(examples))
    assert len(data.train) + len(data.probe) == len(examples)


def test_trained_examples_never_become_probes() -> None:
    trained: set[str] = set()
    for count in (50, 100, 200, 400, 800):
        data = with_probe(SiloData(rows(count), (), ()), 32)
        assert not keys(data.probe) & trained
        trained |= keys(data.train)


def test_enough_validation_examples_are_the_probe() -> None:
    training, validation = rows(16), rows(16, 16)
    data = SiloData(training, validation, rows(8, 32))
    probing = with_probe(data, 64)
    assert (probing.train, probing.probe) == (training, validation)
    assert sorted(keys(probing.all)) == sorted(keys(data.all))
    assert len(probing.all) == len(data.all)
    training_silo = with_probe(SiloData(training, training, ()), 64)
    assert training_silo.probe == ()


def test_small_silo_has_no_probe() -> None:
    data = SiloData(rows(20), (), ())
    assert with_probe(data, 64) == data
    assert with_probe(SiloData((), (), ()), 64).probe == ()


def test_equal_experts_have_equal_losses(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    """The reference probed candidates on consecutive batches, so that r was the batches' noise (defect 2)."""
    base = tiny()
    texts = probe_texts(base, examples, 16, 64)
    assert probe_texts(base, examples[::-1], 16, 64) == texts
    with ExpertLora(base, PLAN, (0, 1, 2, 3), seed=0) as adapter:
        losses = Prober(base, texts, {}).losses(adapter)
        assert set(losses.specialists.values()) == {losses.shared}
        assert responsibilities(losses.specialists) == pytest.approx(uniform((1, 2, 3)))


def test_losses_are_of_the_function_that_is_trained(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    """Shared and specialist at weight 1 each, in eval mode whatever ran before (defects 2 and 13)."""
    base = tiny()
    texts = probe_texts(base, examples, 16, 64)
    with ExpertLora(base, PLAN, (0, 1, 2), seed=0) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        adapter.select((2,))
        base.model.train()  # type: ignore[operator]
        losses = Prober(base, texts, {}).losses(adapter)
        assert base.model.training
        assert adapter.specialists == (2,)
        base.model.eval()  # type: ignore[operator]
        assert losses.specialists[2] == pytest.approx(mean_loss(base, texts), abs=1e-6)
        adapter.select(())
        assert losses.shared == pytest.approx(mean_loss(base, texts), abs=1e-6)
        assert losses.specialists[1] != losses.specialists[2]


def test_choice_and_scores_copy_no_expert(
    tiny: Callable[..., BaseModel], examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference copied its whole bank to the device for each probe and evaluation (defect 11)."""
    base = tiny()
    texts = probe_texts(base, examples, 8, 64)

    def places() -> dict[str, int]:
        return {name: tensor.data_ptr() for name, tensor in base.model.named_parameters()}

    def refused(*_: object) -> None:
        pytest.fail("the bank was copied")

    with ExpertLora(base, PLAN, (0, 1, 2), seed=0) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.3))
        before = places()
        monkeypatch.setattr(ExpertLora, "load", refused)
        monkeypatch.setattr(torch.nn.Module, "to", refused)
        prober = Prober(base, texts, {})
        for specialists in ((1,), (2, 1), ()):
            adapter.select(specialists)
            prober.losses(adapter)
            prober.loss()
        assert places() == before


def test_pair_of_revisions_is_scored_once(
    tiny: Callable[..., BaseModel], examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny()
    texts = probe_texts(base, examples, 8, 64)
    scored: list[int] = []

    def counted(base: BaseModel, texts: object) -> float:
        scored.append(1)
        return 1.0 + len(scored)

    monkeypatch.setattr("client_agent.experts.probe_set.mean_loss", counted)
    stored: dict[str, float] = {}
    with ExpertLora(base, PLAN, (0, 1, 2), seed=0) as adapter:
        state = random_tensors(adapter.layout, scale=0.3)
        adapter.load(state)
        first = Prober(base, texts, stored).losses(adapter)
        assert Prober(base, texts, stored).losses(adapter) == first
        assert len(scored) == 3
        state["x2.l0.q.B"] = state["x2.l0.q.B"] + 1
        adapter.load(state)
        again = Prober(base, texts, stored).losses(adapter)
        assert (again.shared, again.specialists[1]) == (first.shared, first.specialists[1])
        assert len(scored) == 4
        Prober(base, texts[:4], stored).losses(adapter)
        assert len(scored) == 7


def test_broken_specialist_is_unchosen_and_broken_shared_fails(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    prober = Prober(base, probe_texts(base, examples, 8, 64), {})
    with ExpertLora(base, PLAN, (0, 1, 2), seed=0) as adapter:
        state = random_tensors(adapter.layout, scale=0.3)
        adapter.load({**state, "x1.l0.q.B": np.full_like(state["x1.l0.q.B"], np.nan)})
        r = responsibilities(prober.losses(adapter).specialists)
        assert r == {1: 0.0, 2: 1.0}
        adapter.load({**state, "x0.l0.q.B": np.full_like(state["x0.l0.q.B"], np.nan)})
        with pytest.raises(LossNotFinite):
            prober.losses(adapter)
    assert not torch.is_inference_mode_enabled()
