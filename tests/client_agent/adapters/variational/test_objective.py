"""What is added to the loss: the size of B's columns on their own scales, and the distance to the start."""

from __future__ import annotations

import pytest
import torch

from client_agent.adapters.proximal import proximal_term
from client_agent.adapters.variational.posterior import column_norms, size_term, size_weight


@pytest.mark.parametrize("norm", [0.02, 0.5, 1.0, 40.0])
def test_a_larger_kappa_is_not_always_better_and_the_best_is_the_size_itself(norm: float) -> None:
    best = norm**2 / 2 if norm < 1 else norm - 0.5

    def at(kappa: float) -> float:
        return float(size_term(torch.tensor([[norm]]), torch.tensor([[kappa]])))

    assert at(best / 2) > at(best) < at(2 * best)
    assert at(1e6 * best) > at(2 * best)


def test_a_large_kappa_lets_its_column_grow_and_a_small_one_holds_it_down() -> None:
    norms = torch.ones(1, 2, requires_grad=True)
    size_term(norms, torch.tensor([[0.1, 10.0]])).backward()  # type: ignore[no-untyped-call]
    assert norms.grad is not None
    small, large = norms.grad[0].tolist()
    assert small == pytest.approx(100 * large)


def test_each_row_of_kappa_acts_on_its_own_module_and_each_column_on_its_own_rank() -> None:
    modules = ("l0.q", "l0.v", "l1.q")
    tensors = {f"{module}.B": torch.zeros(5, 2, requires_grad=True) for module in modules}
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.fill_(-0.1)
    assert column_norms(tensors, modules).tolist() == [[pytest.approx(0.5)] * 2] * 3
    kappa = torch.full((3, 2), 1e9)
    kappa[1, 0] = 1.0
    size_term(column_norms(tensors, modules), kappa).backward()  # type: ignore[no-untyped-call]
    pulls = {name: tensor.grad.abs().sum(0) for name, tensor in tensors.items() if tensor.grad is not None}
    assert float(pulls["l0.v.B"][0]) > 1e-3
    assert max(float(pulls["l0.v.B"][1]), *(float(pulls[f"{m}.B"].max()) for m in ("l0.q", "l1.q"))) < 1e-8


def test_the_distance_is_that_of_the_adapter_alone() -> None:
    start = {"l0.q.A": torch.zeros(2, 2), "l0.q.B": torch.ones(2, 2)}
    current = {"l0.q.A": torch.ones(2, 2), "l0.q.B": torch.ones(2, 2), "posterior.u": torch.full((9,), 7.0)}
    assert float(proximal_term(current, start)) == 2.0


def test_the_size_weighs_in_the_first_round_and_fully_after_the_warm_up() -> None:
    weights = [size_weight(0.01, number, warm_rounds=2) for number in (1, 2, 3, 9)]
    assert weights == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.01])
    assert size_weight(0.01, 1, warm_rounds=0) == 0.01


def test_nothing_explodes_at_the_smallest_scale_that_a_posterior_can_have() -> None:
    assert torch.isfinite(size_term(torch.zeros(1, 1), torch.tensor([[1e-6]])))
