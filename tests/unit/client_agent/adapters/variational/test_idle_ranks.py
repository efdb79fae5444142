"""Idle ranks of a real model: less memory and computation, and the same tensors on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from client_agent.adapters.inject import inject_lora
from client_agent.adapters.variational.adapter import VariationalAdapter, posterior_of, ranks_of
from client_agent.adapters.variational.posterior import START, raw_of
from client_agent.importance.rounds import readmit_ranks
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from schemas.maths.adapter import factor_of
from schemas.messages.federations import AdapterPlan, TrainingPlan
from schemas.strategies.ca_pfl import CaPflOptions
from tests.scene.local_training import train_with_penalty

RANK = 4
PLAN = AdapterPlan(kind="lora", rank=RANK, scale=4.0, roles=("q", "v"))
TRAINING = TrainingPlan(steps=4, batch_size=4, learning_rate=0.003, max_length=64)
Arrays = dict[str, np.ndarray]


@contextmanager
def placed(base: BaseModel, cut: float = 0.5) -> Iterator[VariationalAdapter]:
    with VariationalAdapter(inject_lora(base, PLAN, seed=0), base, CaPflOptions(cut=cut)) as adapter:
        adapter.load(served_tensors(adapter))
        yield adapter


def served_tensors(adapter: VariationalAdapter) -> Arrays:
    rng = np.random.default_rng(0)
    return {
        name: np.zeros(shape, np.float32)
        if factor_of(name) == "prior"
        else rng.normal(0, 0.1, shape).astype(np.float32)
        for name, shape in adapter.layout.items()
    }


def with_idle(adapter: VariationalAdapter, ranks: int = 3) -> Arrays:
    """Return private tensors in which the first ranks of every module are idle and of little importance."""
    private = adapter.private_state()
    private["ranks.below"][:, :ranks] = 2
    gamma = posterior_of(private)
    gamma[1, :, :ranks] *= 10
    return private | {"posterior.u": raw_of(gamma).numpy()}


def flops(base: BaseModel) -> int:
    with FlopCounterMode(display=False) as counter:
        base.model(input_ids=torch.arange(4, 12)[None]).logits.sum().backward()
    return counter.get_total_flops()


def test_dropped_ranks_save_parameters_moments_and_operations(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    bare = flops_of_bare(base)
    sizes, moments, operations = [], [], []
    with placed(base) as adapter:
        for private in (adapter.private_state(), with_idle(adapter)):
            adapter.load(served_tensors(adapter))
            adapter.load_private(private)
            tensors = {n: p for n, p in adapter.named_parameters().items() if factor_of(n) in ("A", "B")}
            sizes.append(sum(parameter.numel() for parameter in tensors.values()))
            operations.append(flops(base) - bare)
            outcome = train_with_penalty(base, adapter, examples, TRAINING)
            moments.append(sum(outcome.optimiser_state[f"{name}.exp_avg"].size for name in tensors))
    assert sizes[1] == sizes[0] / 4
    assert moments[1] == moments[0] / 4
    assert operations[1] < 0.26 * operations[0]


def flops_of_bare(base: BaseModel) -> int:
    """Count the operations beside the adapter: those of an adapter without ranks."""
    with inject_lora(base, PLAN, seed=0) as lora:
        modules = {name.rpartition(".")[0] for name in lora.layout}
        lora.keep_ranks({module: np.zeros(RANK, bool) for module in modules})
        return flops(base)


def test_idle_ranks_are_silent_and_sent_as_served(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base, ids = tiny(), torch.arange(4, 12)[None]
    with placed(base) as adapter, torch.no_grad():
        weights = served_tensors(adapter)
        adapter.load_private(with_idle(adapter))
        dropped = base.model(input_ids=ids).logits
        zeroed = {
            name: np.concatenate([0 * values[:, :3], values[:, 3:]], 1) if factor_of(name) == "B" else values
            for name, values in weights.items()
        }
        adapter.load(zeroed)
        torch.testing.assert_close(base.model(input_ids=ids).logits, dropped)
    with placed(base) as adapter:
        adapter.load_private(with_idle(adapter))
        train_with_penalty(base, adapter, examples, TRAINING)
        adapter.end_round()
        state = adapter.state()
    for name in (name for name in weights if factor_of(name) == "A"):
        np.testing.assert_array_equal(state[name][:3], weights[name][:3])
        assert (state[name][3] != weights[name][3]).any()
        b = f"{name[:-1]}B"
        np.testing.assert_array_equal(state[b][:, :3], weights[b][:, :3])


def test_rank_below_cut_in_two_rounds_is_dropped(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    with placed(base) as adapter:
        gamma = torch.full_like(posterior_of(adapter.private_state()), START)
        gamma[1, 0, 1] = 20.0  # importance .1 of one rank of l0.q
        unimportant = {"posterior.u": raw_of(gamma).numpy()}
        adapter.load_private(adapter.private_state() | unimportant)
        weights, numbers = adapter.state(), []
        for _ in range(2):
            train_with_penalty(base, adapter, examples, TRAINING)
            adapter.end_round()
            numbers.append(int(ranks_of(adapter.private_state()).sum()))
        state, shape = adapter.state(), adapter.named_parameters()["l0.q.A"].shape
        in_model = adapter.private_state()
    whole = 2 * base.layers * RANK
    assert numbers == [whole, whole - 1]
    assert shape[0] == RANK - 1
    np.testing.assert_array_equal(state["l0.q.B"][:, 1], weights["l0.q.B"][:, 1])
    assert (state["l0.q.B"][:, 0] != weights["l0.q.B"][:, 0]).any()
    with placed(base) as adapter:  # as it was stored, it comes back
        adapter.load(state)
        adapter.load_private(in_model)
        assert adapter.named_parameters()["l0.q.A"].shape == shape
        for name, values in adapter.state().items():
            np.testing.assert_allclose(values, state[name], atol=1e-6)


def test_idle_rank_with_large_gradient_returns(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    silo = Silo(base, SiloData(tuple(examples), (), ()), None)
    with placed(base) as adapter:
        weights = served_tensors(adapter)
        for module in ("l0.q", "l1.v"):  # an A that reads much, and its gradient is large
            weights[f"{module}.A"][0] *= 100
        adapter.load(weights)
        adapter.load_private(with_idle(adapter, ranks=2))
        before = ranks_of(adapter.private_state())
        readmit_ranks(adapter, silo, TRAINING)
        after = ranks_of(adapter.private_state())
        row = sorted({name.rpartition(".")[0] for name in adapter.layout}).index
        assert not before[:, :2].any()
        assert after[row("l0.q"), 0]
        assert after[row("l1.v"), 0]
        assert after.sum() < after.size
        assert posterior_of(adapter.private_state())[:, row("l0.q"), 0].tolist() == pytest.approx([START] * 2)
        for name, values in adapter.state().items():
            np.testing.assert_allclose(values, weights[name], rtol=1e-6)
        train_with_penalty(base, adapter, examples, TRAINING)
        assert (adapter.state()["l0.q.B"][:, 0] != weights["l0.q.B"][:, 0]).any()
