"""Measure what attackers achieve against a plain mean, against relevance alone, and against the guard.

    python -m benchmarks.attacks [--draws 20] [--rounds 5] [--seeds 0] [--vectors-only] [--out FILE.json]

First on vectors: three tasks of four honest clients, six attackers that copy the sketches of one task.
Shown is what a client of that task goes on from, along what it asks for (1 = perfect) and along what the
attackers want; "as designed" rests on sketches alone, as published, with oneself in the row. The second table
is of six rounds, of which attackers plant poison in the first one. Then on real adapters: five silos that
train examples/models/tiny-s on one task, and two attackers, in rounds of a real coordinator; shown is the
honest silos' loss on held-out examples. The guard is in docs/explanation/poisoning.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from benchmarks import attack_planting, attack_vectors, attacked_rounds, figures

_AS_DESIGNED = {"mix": "gate", "include_self": True}
METHODS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "plain mean": ("fedavg", {}),
    "relevance, as designed": ("fedmosaic", _AS_DESIGNED | {"guard": "off"}),
    "strict, as designed": ("fedmosaic", _AS_DESIGNED | {"guard": "strict"}),
    "relevance": ("fedmosaic", {"guard": "off"}),
    "strict": ("fedmosaic", {"guard": "strict"}),
    "guard": ("fedmosaic", {}),
}
_GUARDS: Mapping[str, dict[str, Any]] = {
    "relevance": {"guard": "off"},
    "strict": {"guard": "strict"},
    "guard": {},
}
_ONE_ORGANISATION = ", of one organisation"


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--draws", type=int, default=20, help="draws of the vectors (default: 20)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a federation (default: 5)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the federations (default: 0)")
    parser.add_argument("--vectors-only", action="store_true", help="train nothing; a few seconds")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/attacks.json"))
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    vectors = on_vectors(arguments.draws, console)
    result: dict[str, Any] = {**figures.machine(), "draws": arguments.draws, "vectors": vectors}
    _show_vectors(console, METHODS, vectors)
    result["planting"] = on_planting(arguments.draws, console)
    _show_vectors(console, _GUARDS, result["planting"])
    if not arguments.vectors_only:
        result |= {"rounds": arguments.rounds, "seeds": arguments.seeds}
        result["adapters"] = on_adapters(arguments.rounds, arguments.seeds, console)
        _show_adapters(console, result["adapters"])
    figures.write(arguments.out, result)


def on_vectors(draws: int, console: Console) -> dict[str, dict[str, dict[str, float]]]:
    """Play every attack against every method; means over draws."""
    attacks = [(name, False) for name in attack_vectors.ATTACKS] + [("stealth, decorrelated", True)]
    built: dict[str, dict[str, dict[str, float]]] = {}
    for attack, organisation in track(attacks, description="vectors", console=console):
        row = built.setdefault(attack + _ONE_ORGANISATION * organisation, {})
        for method, (strategy, options) in METHODS.items():
            outcomes = [
                attack_vectors.play(attack, strategy, options, seed=seed, organisation=organisation)
                for seed in range(draws)
            ]
            row[method] = _means(outcomes)
    return built


def on_planting(draws: int, console: Console) -> dict[str, dict[str, dict[str, float]]]:
    """Play every planting under every guard; means over draws."""
    return {
        name: {
            guard: _means([attack_planting.play(planting, options, seed=seed) for seed in range(draws)])
            for guard, options in _GUARDS.items()
        }
        for name, planting in track(
            attack_planting.PLANTINGS.items(), description="planting", console=console
        )
    }


def _means(outcomes: Sequence[attack_vectors.UpdateParts]) -> dict[str, float]:
    return {
        "right": fmean(outcome.right for outcome in outcomes),
        "poison": fmean(outcome.poison for outcome in outcomes),
    }


def on_adapters(rounds: int, seeds: list[int], console: Console) -> dict[str, dict[str, dict[str, Any]]]:
    """Run every attack against relevance alone and against the guard."""
    runs = [
        (attack, guard, seed)
        for attack in attacked_rounds.ATTACKS
        for guard in ("off", "on")
        for seed in seeds
    ]
    built: dict[str, dict[str, dict[str, Any]]] = {}
    with attacked_rounds.place(Path("runs/benchmarks/attacks").resolve()) as where:
        steps = iter(track(range(len(runs) * rounds), description="adapters", console=console))
        next(steps)
        for attack, guard, seed in runs:

            def tell() -> None:
                next(steps, None)

            scored = attacked_rounds.run(where, attack, guard, seed=seed, rounds=rounds, tell=tell)
            of = built.setdefault(attack, {}).setdefault(guard, {"before": {}, "after": {}})
            of["before"][str(seed)], of["after"][str(seed)] = scored.before, scored.after
    return built


def _show_vectors(
    console: Console, methods: Iterable[str], result: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> None:
    rows = [
        (attack, *(f"{parts[method]['right']:.2f} / {parts[method]['poison']:.2f}" for method in methods))
        for attack, parts in result.items()
    ]
    figures.show(console, "served of what is right / of poison", ("attack", *methods), rows)


def _show_adapters(console: Console, result: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    rows = []
    for attack, of in result.items():
        row: list[object] = [attack]
        for guard in ("off", "on"):
            for when in ("before", "after"):
                last = [rounds[-1] for rounds in of[guard][when].values()]
                row.append(f"{fmean(map(fmean, last)):.3f} / {fmean(map(max, last)):.2f}")
        rows.append(row)
    columns = ("attack", "relevance: given", "trained", "guard: given", "trained")
    figures.show(console, "held-out loss of the honest in the last round, mean / worst", columns, rows)


if __name__ == "__main__":
    main()
