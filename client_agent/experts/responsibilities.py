"""The fit of each specialist to a client: responsibilities, fit, regret and rejection, from probe losses.

Losses are in nats per answer token; none of them leaves the client. Their differences do, in sums. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import exp, isfinite, log, sqrt

_SMALLEST_PRIOR = 1e-12


@dataclass(frozen=True, slots=True)
class ProbeLosses:
    """Mean losses on the probe set, in nats per answer token.

    Attributes:
        shared: l_i0, of the shared expert alone.
        specialists: l_ik, of the shared expert and specialist k, each at weight 1 as they are trained;
            infinite where the model's output is not finite.
    """

    shared: float
    specialists: dict[int, float]

    @property
    def best(self) -> float:
        """The loss of the best specialist, or of the shared expert in a bank without specialists."""
        return min(self.specialists.values(), default=self.shared)


def uniform(specialists: Collection[int]) -> dict[int, float]:
    """Return equal responsibilities, as of a client without a probe set."""
    return {expert: 1 / len(specialists) for expert in specialists}


def responsibilities(
    losses: Mapping[int, float],
    *,
    tau: float | None = None,
    prior: Mapping[int, float] | None = None,
    prior_weight: float = 0.0,
) -> dict[int, float]:
    """Compute r_k = softmax over specialists of (e ln pi_k - l_k / tau); they sum to 1.

    A specialist whose loss is not finite has r_k = 0. If all losses are equal, or none is finite, the losses
    decide nothing.

    Args:
        losses: l_k of every active specialist.
        tau: the temperature; None = the standard deviation of the finite losses.
        prior: pi_k of every active specialist; needed with a weight.
        prior_weight: e.
    """
    finite = {expert: loss for expert, loss in losses.items() if isfinite(loss)}
    usable = finite or dict.fromkeys(losses, 0.0)
    # The spread makes the softmax independent of the unit and size of the losses.
    scale = tau if tau is not None else spread(usable)
    scores = {
        expert: (prior_weight * log(max((prior or {})[expert], _SMALLEST_PRIOR)) if prior_weight else 0.0)
        - (loss / scale if scale else 0.0)
        for expert, loss in usable.items()
    }
    # Subtracted before the exponential, which would overflow at large scores.
    largest = max(scores.values(), default=0.0)
    weights = {expert: exp(score - largest) for expert, score in scores.items()}
    total = sum(weights.values())
    return {expert: weights.get(expert, 0.0) / total for expert in losses}


def spread(losses: Mapping[int, float]) -> float:
    """Return the standard deviation of losses; 0 of fewer than two."""
    if not losses:
        return 0.0
    mean = sum(losses.values()) / len(losses)
    return sqrt(sum((loss - mean) ** 2 for loss in losses.values()) / len(losses))


def fit(losses: ProbeLosses) -> float:
    """Compute g = clip((l_0 - min_k l_k) / l_0, 0, 1): the gain of the best specialist."""
    return _share(losses.shared - losses.best, losses.shared)


def regret(losses: ProbeLosses, local: float) -> float:
    """Compute h = clip((min_k l_k - l_local) / l_0, 0, 1): the loss of the bank against the personal model.

    Like `fit` it is a share of the shared expert's loss: two losses that are both near zero differ by little.

    Args:
        local: the loss of the client's last personal model on the same probe set.
    """
    return _share(losses.best - local, losses.shared)


def rejects(losses: ProbeLosses, local: float | None, *, regret_above: float) -> bool:
    """Whether the bank has no expert for this client: its regret is large.

    The sharpness of the responsibilities does not count, because two equally good experts are no reason to
    reject both. Without a personal model nothing is rejected.
    """
    return local is not None and regret(losses, local) > regret_above


def differences(losses: ProbeLosses, expert: int) -> dict[int, float]:
    """Compute d_j = clip((l_j - l_k) / l_0, -1, 1) of each other specialist j, for specialist k = `expert`.

    d_j is the cost of j in place of k to the client, as a share of the shared expert's loss, as in `regret`.
    If one of the two losses is not finite, d_j is 1.
    """
    expert_loss = losses.specialists[expert]
    return {
        peer: _share(loss - expert_loss, losses.shared) - _share(expert_loss - loss, losses.shared)
        if isfinite(expert_loss) and isfinite(loss)
        else 1.0
        for peer, loss in losses.specialists.items()
        if peer != expert
    }


def _share(difference: float, whole: float) -> float:
    if difference <= 0:
        return 0.0
    # A shared loss of 0 leaves no scale; any loss above it counts in full.
    return min(1.0, difference / whole) if whole > 0 else 1.0
