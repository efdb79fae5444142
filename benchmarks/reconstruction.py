"""Measure what a member can compute of another's adapter, from what it was served and what it knows.

    python -m benchmarks.reconstruction

A member knows its own update, what it was served, and the weights in it. Its best guess of what another sent
is the least-squares solution of these equations (minimum norm, as for updates that are independent). Printed
is the relative error of the guess that is best, over all others: 0 is the adapter itself, 1 is knowing
nothing. The mixtures are made by the coordinator's own strategies, guard and `privacy.min_voices`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.guard import guard_weights
from coordinator.aggregation.voices import require_voices
from coordinator.strategies.base import ClientFacts, Cohort, Sketch, modules_of
from coordinator.strategies.capabilities import Source
from coordinator.strategies.opening import make
from schemas.maths.adapter import Layout
from schemas.maths.factors import Factors

Floats = NDArray[np.float64]

VALUES = 2000
RANK = 4
LEASTS = (1, 2, 3)
_MODULE = "l0.q"
_SHAPES: Layout = {"l0.q.A": (RANK, 60), "l0.q.B": (50, RANK)}
_DRIFT = 0.3
_IN_COMMON = 0.35  # of each update's length: a cosine of .1, as between silos of one task after a first round


def members(count: int, sketches: Sequence[Sequence[float]] | None = None) -> Cohort:
    """Return a cohort of established members of one base model, whose sketches are alike by default."""
    vectors = sketches or [(1.0, 0.0, 0.0, 0.0)] * count
    return Cohort(
        [
            ClientFacts(
                client=f"c{i}",
                base_model="m",
                alignment_set=None,
                modules=modules_of(_SHAPES),
                age=0,
                examples=100,
                sketch=Sketch(np.array(vector, np.float32)),
                sketch_model="m",
                is_source=True,
            )
            for i, vector in enumerate(vectors)
        ],
        decay=0.5,
    )


def with_newcomer(cohort: Cohort, guess: Sequence[float]) -> Cohort:
    """Return a cohort with a newcomer that sent `guess` as its sketch, first in order."""
    sketch = Sketch(np.array(guess, np.float32))
    spy = replace(cohort.clients[0], client="a", age=None, examples=0, sketch=sketch, is_source=False)
    return Cohort([spy, *cohort.clients], cohort.decay)


def weights(strategy_name: str, cohort: Cohort, updates: Floats, least: int) -> Floats:
    """Return W (N, N) as it is served: by the strategy, its guard, and `least` voices."""
    strategy = make(strategy_name, {})
    weighing = strategy.weigh(cohort)
    products = {kind: updates @ updates.T for kind in cohort.kinds()}
    settled = weighing if strategy.caps is None else guard_weights(weighing, products, strategy.caps)
    return require_voices(settled, least, common=strategy.options.base_delta).of_module(_MODULE)


def best_guess(equations: Floats, served: Floats, updates: Floats) -> float:
    """Return the smallest relative error of the others' updates (n, D), from served = equations @ updates.

    `equations` is (m, n), over the other members only; the attacker's own share is subtracted already.
    """
    guess = np.linalg.lstsq(equations, served, rcond=None)[0]  # (n, D)
    return float(np.min(np.linalg.norm(guess - updates, axis=1) / np.linalg.norm(updates, axis=1)))


def mixture_error(strategy: str, cohort: Cohort, least: int, seed: int = 0) -> float:
    """Return the error of the first member's best guess after one round."""
    updates = _updates(np.random.default_rng(seed), len(cohort.clients))
    if cohort.clients[0].age is None:
        updates[0] = 0.0
    row = weights(strategy, cohort, updates, least)[0]
    served = (row @ updates).astype(np.float32) - row[0] * updates[0]
    return best_guess(row[None, 1:], served[None], updates[1:])


def two_round_error(strategy: str, count: int, least: int, seed: int = 0) -> float:
    """Return the error of the first member's best guess of an update whose member misses the second round.

    The other updates change between both rounds, by 0.3 of their length.
    """
    rng = np.random.default_rng(seed)
    first = _updates(rng, count)
    second = first + _DRIFT * rng.standard_normal((count, VALUES))
    cohort = members(count)
    without = Cohort(cohort.clients[:-1], cohort.decay)
    earlier = weights(strategy, cohort, first, least)[0]
    later = np.append(weights(strategy, without, second[:-1], least)[0], 0.0)
    served = np.stack([earlier @ first - earlier[0] * first[0], later @ second - later[0] * second[0]])
    guess = np.linalg.lstsq(np.stack([earlier, later])[:, 1:], served, rcond=None)[0][-1]
    return float(np.linalg.norm(guess - first[-1]) / np.linalg.norm(first[-1]))


def fold_error(strategy_name: str, count: int, least: int, seed: int = 0) -> float:
    """Return the error of the first member's best guess of another's product B A, after one fold.

    It tries the fold less its own share, and each column block of the factors that it was served.
    """
    rng = np.random.default_rng(seed)
    strategy = make(strategy_name, {})
    factors = [
        Factors(*(rng.standard_normal(shape).astype(np.float32) for shape in _SHAPES.values()))
        for _ in range(count)
    ]
    cohort = members(count)
    products = np.stack([_product(pair).ravel() for pair in factors])
    row = weights(strategy_name, cohort, products, least)[0]
    if not row[1:].any():
        return best_guess(row[None, 1:], np.zeros((1, products.shape[1])), products[1:])
    folded = strategy.base_delta(
        [Source(pair, float(share)) for pair, share in zip(factors, row, strict=True)]
    )
    whole = _product(folded.residual).ravel()
    if folded.served is not None:
        whole = whole + _product(folded.served).ravel()
    guesses = [best_guess(row[None, 1:], (whole - row[0] * products[0])[None], products[1:])]
    for begin in range(0, folded.residual.rank, RANK):
        block = slice(begin, begin + RANK)
        part = _product(Factors(folded.residual.A[block], folded.residual.B[:, block])).ravel()
        guesses += [_scaled_error(part, peer) for peer in products[1:]]
    return min(guesses)


def _updates(rng: np.random.Generator, count: int) -> Floats:
    common = rng.standard_normal(VALUES)
    updates: Floats = _IN_COMMON * common + rng.standard_normal((count, VALUES))
    return updates


def _product(factors: Factors) -> Floats:
    product: Floats = factors.B.astype(np.float64) @ factors.A.astype(np.float64)
    return product


def _scaled_error(guess: Floats, true: Floats) -> float:
    """Return the relative error of the multiple of a guess that is nearest."""
    scale = guess @ true / max(float(guess @ guess), 1e-300)
    return float(np.linalg.norm(scale * guess - true) / np.linalg.norm(true))


_APART = [(1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0)]
_GUESS = (1.0, 0.2, 0.1, 0.3)

CASES: dict[str, Callable[[int], float]] = {
    "fedavg, two members": lambda least: mixture_error("fedavg", members(2), least),
    "fedavg, three members": lambda least: mixture_error("fedavg", members(3), least),
    "fedavg, four members": lambda least: mixture_error("fedavg", members(4), least),
    "fedavg, five members, one absent then": lambda least: two_round_error("fedavg", 5, least),
    "fedmosaic, two members": lambda least: mixture_error("fedmosaic", members(2), least),
    "fedmosaic, newcomer, one like its guess": lambda least: mixture_error(
        "fedmosaic", with_newcomer(members(3, _APART), _GUESS), least
    ),
    "fedmosaic, newcomer, three like its guess": lambda least: mixture_error(
        "fedmosaic", with_newcomer(members(3), _GUESS), least
    ),
    "flora, two members": lambda least: fold_error("flora", 2, least),
    "flora, three members": lambda least: fold_error("flora", 3, least),
    "flora, four members": lambda least: fold_error("flora", 4, least),
    "fedex_lora, two members": lambda least: fold_error("fedex_lora", 2, least),
    "fedex_lora, four members": lambda least: fold_error("fedex_lora", 4, least),
}


def main() -> None:
    """Print the table."""
    print(f"{'relative error of the best guess':44}" + "".join(f"min_voices {k:<4}" for k in LEASTS))
    for name, error in CASES.items():
        print(f"{name:44}" + "".join(f"{error(least):<15.2f}" for least in LEASTS))


if __name__ == "__main__":
    main()
