"""Measure relevance where each round draws a part of the clients, in a simulation without a model.

    python -m benchmarks.drawn_rounds [--clients 10] [--rounds 6] [--share 0.5] [--draws 8] [--out FILE.json]

Every client has an optimum: the direction of its group, and a part of its own. In a round it goes a part of
the way from what it was served to its optimum, with noise; the part falls to zero over the rounds. The
product's own code compares the changes, weighs and guards. Shown is the mean squared distance of what clients
are served in the end from the direction of their group, and the standard deviation of cosines inside groups:
with cosines compared by round (the default), as they are, by sketches alone, and for the mean of all.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import figures
from benchmarks.attack_vectors import MODULE, client, direction
from coordinator.aggregation.changes import Changes, summed
from coordinator.aggregation.guard import guard_weights
from coordinator.strategies.base import Cohort, Floats
from coordinator.strategies.opening import make

RULES = ("by round", "as they are", "by round, guard on", "sketches", "mean")
GROUPS: Mapping[str, int] = {"one task": 1, "two that contradict": 2}

_STEP = 0.5
_NOISE = 0.7
_OWN = 0.3
_DECAY = 0.5  # `rounds.staleness_decay`


def main() -> None:
    """Simulate, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drawn_rounds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--clients", type=int, default=10, help="number of clients (default: 10)")
    parser.add_argument("--rounds", type=int, default=6, help="number of rounds (default: 6)")
    parser.add_argument("--share", type=float, default=0.5, help="share of clients in a round (default: 0.5)")
    parser.add_argument("--draws", type=int, default=8, help="draws of everything (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/drawn_rounds.json"))
    arguments = parser.parse_args()
    cases = []
    for name, groups in GROUPS.items():
        for rule in RULES:
            outcomes = [
                simulate(rule, groups, arguments.clients, arguments.rounds, arguments.share, seed)
                for seed in range(arguments.draws)
            ]
            error, deviation = (fmean(values) for values in zip(*outcomes, strict=True))
            cases.append({"groups": name, "rule": rule, "error": error, "deviation": deviation})
    figures.write(arguments.out, {**figures.machine(), **vars(arguments), "out": None, "cases": cases})
    rows = [
        (case["groups"], case["rule"], f"{case['error']:.3f}", f"{case['deviation']:.3f}") for case in cases
    ]
    columns = ("groups", "rule", "error", "deviation of cosines")
    figures.show(Console(), "error of the served weights, by rule", columns, rows)


def simulate(
    rule: str, groups: int, clients: int, rounds: int, share: float, seed: int
) -> tuple[float, float]:
    """Return the error of the served weights, and the deviation of cosines inside groups."""
    rng = np.random.default_rng(seed)
    common = direction(rng)
    targets = np.stack([common + direction(rng) for _ in range(groups)])
    group = np.arange(clients) % groups
    optima = targets[group] + _OWN * np.stack([direction(rng) for _ in range(clients)])
    sketch = direction(rng)[:64]
    members = [client(k, sketch, rng, None) for k in range(clients)]
    options = {"guard": "on" if "guard" in rule else "off"}
    strategy = make("fedmosaic", options | ({"evidence": "sketches"} if rule == "sketches" else {}))
    served, states = np.zeros_like(optima), np.zeros_like(optima)
    last = np.full(clients, -1)
    earlier: Changes | None = None
    deviation = 0.0
    for number in range(rounds):
        drawn = np.zeros(clients, bool)
        drawn[rng.choice(clients, max(2, round(share * clients)), replace=False)] = True
        step = _STEP * (1 - number / rounds)
        noise = np.stack([_NOISE * direction(rng) for _ in members])
        changes = np.where(drawn[:, None], step * (optima - served + noise), 0.0)
        states[drawn] = (served + changes)[drawn]
        last[drawn] = number
        established = np.flatnonzero(last >= 0)
        facts = [replace(members[k], age=int(number - last[k])) for k in established]
        cohort = Cohort(facts, _DECAY, None)
        kind = cohort.kind(MODULE)
        earlier = summed(cohort, {kind: changes[established] @ changes[established].T}, earlier)
        if rule == "as they are":
            earlier = replace(earlier, usual=np.zeros_like(earlier.usual))
        cosines = earlier.cosines()
        deviation = _deviation(cosines, group[established])
        weights = _mean_weights(number - last[established])
        if rule != "mean":
            weighed = Cohort(facts, _DECAY, None if rule == "sketches" else cosines)
            weighing = strategy.weigh(weighed)
            weights = weighing.of_module(MODULE)
            if strategy.caps is not None:
                products = {kind: states[established] @ states[established].T}
                weights = guard_weights(weighing, products, strategy.caps).of_module(MODULE)
        served[established] = weights @ states[established]
        # A client without a round of its own is served the mean of all, as by a sketch that resembles all.
        served[last < 0] = states[established].mean(axis=0)
    return float(((served - targets[group]) ** 2).sum(axis=1).mean()), deviation


def _mean_weights(ages: NDArray[np.int_]) -> Floats:
    shares = _DECAY ** ages.astype(float)
    return np.tile(shares / shares.sum(), (len(shares), 1))


def _deviation(cosines: Floats, group: NDArray[np.int_]) -> float:
    inside = np.equal.outer(group, group) & ~np.eye(len(cosines), dtype=bool)
    return float(np.nanstd(cosines[inside]))


if __name__ == "__main__":
    main()
