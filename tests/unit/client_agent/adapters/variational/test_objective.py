"""Terms of the variational loss: the size of B's columns, and the distance to the start."""

from __future__ import annotations

from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Gamma

from client_agent.adapters.proximal import proximal_term
from client_agent.adapters.variational.posterior import (
    column_norms,
    gamma_kl,
    inverse_mean,
    log_mean,
    positive,
    size_term,
    size_weight,
)


def narrow(kappa: Tensor) -> Tensor:
    """Return shapes and rates (2, M, r) of a Gamma distribution close to a point kappa (M, r)."""
    shape = torch.full_like(kappa, 1e4)
    return torch.stack([shape, shape / kappa])


@pytest.mark.parametrize(("a", "b"), [(3.0, 2.0), (4.5, 0.3), (20.0, 30.0)])
def test_expectations_equal_sample_means(a: float, b: float) -> None:
    torch.manual_seed(0)
    gamma = torch.tensor([a, b], dtype=torch.float64).view(2, 1, 1)
    kappa = Gamma(gamma[0], gamma[1]).sample(torch.Size([400_000]))
    for computed, values in ((inverse_mean(gamma), 1 / kappa), (log_mean(gamma), kappa.log())):
        error = float(values.std()) / len(kappa) ** 0.5
        assert abs(float(computed) - float(values.mean())) < 4 * error


def test_published_example_has_its_known_inverse_mean() -> None:
    gamma = torch.tensor([1.5, 2.0]).view(2, 1, 1)
    assert float(inverse_mean(gamma)) == pytest.approx(4.0)
    assert float(gamma[1] / gamma[0]) == pytest.approx(4 / 3)


@pytest.mark.parametrize("norm", [0.0, 0.3, 2.0])
def test_concentration_has_a_gradient_at_fixed_mean(norm: float) -> None:
    """The gradient along (a, b) -> (t a, t b), which leaves the mean a/b as it is."""
    t = torch.ones((), requires_grad=True)
    gamma = t * torch.tensor([2.0, 2.0]).view(2, 1, 1)
    size_term(torch.tensor([[norm]]), gamma).backward()  # type: ignore[no-untyped-call]
    assert t.grad is not None
    # d/dt [s b/(a - 1/t) + psi(t a) - ln t b] at t = 1
    s = norm**2 / 2 if norm < 1 else norm - 0.5
    expected = -s * 2.0 + 2.0 * float(torch.polygamma(1, torch.tensor(2.0))) - 1
    assert float(t.grad) == pytest.approx(expected, rel=1e-4)
    assert abs(float(t.grad)) > 0.05


@given(
    norm=st.floats(0.05, 20),
    a=st.floats(1.2, 30),
    b=st.floats(0.05, 30),
    prior=st.sampled_from([1.5, 2.0, 6.0]),
)
@settings(deadline=None, max_examples=30)
def test_size_and_divergence_bound_the_evidence(norm: float, a: float, b: float, prior: float) -> None:
    shapes, rates = torch.tensor([a, prior]).double(), torch.tensor([b, 2.0]).double()
    gamma = torch.stack([shapes[:1], rates[:1]]).view(2, 1, 1)
    size = size_term(torch.tensor([[norm]], dtype=torch.float64), gamma)
    bound = float(size + gamma_kl(shapes[0], rates[0], shapes[1], rates[1]))
    s = norm**2 / 2 if norm < 1 else norm - 0.5
    assert bound >= -log_evidence(s, prior, 2.0) - 1e-6


def test_best_posterior_is_near_evidence_and_follows_prior() -> None:
    s, concentrations = 1.5, []
    values = torch.logspace(-2, 2, 801, dtype=torch.float64)
    shapes, rates = (grid.reshape(-1, 1, 1) for grid in torch.meshgrid(1 + values, values, indexing="ij"))
    for certainty in (2.0, 8.0):
        prior = torch.tensor(certainty).double()
        gamma = torch.stack([shapes, rates])
        bounds = s * inverse_mean(gamma) + log_mean(gamma) + gamma_kl(shapes, rates, prior, prior)
        assert 0 <= float(bounds.min()) + log_evidence(s, certainty, certainty) < 0.06
        concentrations.append(float(shapes.reshape(-1)[bounds.argmin()]))
    assert concentrations[0] < concentrations[1]


def log_evidence(s: float, a: float, b: float) -> float:
    """Integrate ln of p(s) = int e^(-s/kappa) / kappa Gamma(kappa; a, b) d kappa, over ln kappa."""
    ln_kappa = torch.linspace(log(1e-6), log(1e4), 4_001, dtype=torch.float64)
    kappa = ln_kappa.exp()
    prior = Gamma(torch.tensor(a).double(), torch.tensor(b).double())
    return float(torch.logsumexp(prior.log_prob(kappa) - s / kappa, 0)) + log(
        float(ln_kappa[1] - ln_kappa[0])
    )


@pytest.mark.parametrize("norm", [0.02, 0.5, 1.0, 40.0])
def test_best_kappa_is_the_size_itself(norm: float) -> None:
    best = norm**2 / 2 if norm < 1 else norm - 0.5

    def term_at(kappa: float) -> float:
        return float(size_term(torch.tensor([[norm]]), narrow(torch.tensor([[kappa]]))))

    assert term_at(best / 2) > term_at(best) < term_at(2 * best)
    assert term_at(1e6 * best) > term_at(2 * best)


def test_small_kappa_penalises_its_column_more() -> None:
    norms = torch.ones(1, 2, requires_grad=True)
    size_term(norms, narrow(torch.tensor([[0.1, 10.0]]))).backward()  # type: ignore[no-untyped-call]
    assert norms.grad is not None
    small, large = norms.grad[0].tolist()
    assert small == pytest.approx(100 * large)


def test_kappa_acts_on_its_own_module_and_rank() -> None:
    modules = ("l0.q", "l0.v", "l1.q")
    tensors = {f"{module}.B": torch.zeros(5, 2, requires_grad=True) for module in modules}
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.fill_(-0.1)
    assert column_norms(tensors, modules).tolist() == [[pytest.approx(0.5)] * 2] * 3
    kappa = torch.full((3, 2), 1e9)
    kappa[1, 0] = 1.0
    size_term(column_norms(tensors, modules), narrow(kappa)).backward()  # type: ignore[no-untyped-call]
    pulls = {name: tensor.grad.abs().sum(0) for name, tensor in tensors.items() if tensor.grad is not None}
    assert float(pulls["l0.v.B"][0]) > 1e-3
    assert max(float(pulls["l0.v.B"][1]), *(float(pulls[f"{m}.B"].max()) for m in ("l0.q", "l1.q"))) < 1e-8


def test_proximal_distance_covers_adapter_tensors_only() -> None:
    start = {"l0.q.A": torch.zeros(2, 2), "l0.q.B": torch.ones(2, 2)}
    current = {"l0.q.A": torch.ones(2, 2), "l0.q.B": torch.ones(2, 2), "posterior.u": torch.full((9,), 7.0)}
    assert float(proximal_term(current, start)) == 2.0


def test_size_weight_rises_to_full_after_warm_up() -> None:
    weights = [size_weight(0.01, number, warm_rounds=2) for number in (1, 2, 3, 9)]
    assert weights == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.01])
    assert size_weight(0.01, 1, warm_rounds=0) == 0.01


def test_size_term_is_finite_at_smallest_scale() -> None:
    assert torch.isfinite(size_term(torch.tensor([[1e3]]), positive(torch.full((2, 1, 1), -1e4))))
