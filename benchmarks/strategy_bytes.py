"""Bytes of one client up and down, for every strategy under its recommended plan, on three base models.

    python -m benchmarks.strategy_bytes [--out FILE.json]

Shapes are those of the public configurations of SmolLM2-135M, Llama-3.2-3B and Llama-3.1-8B; no base weights
are needed. Values are normally distributed, which compresses no better than what is learnt. Bodies are
encoded by the codec of agent and coordinator, manifest, sketch and zstd frame included, HTTP and JSON not.
Weights are `own_last`, the difference to a client's last update, which it requests from its second round on,
or dense in its first round, at the end, and where updates are dense or differences to the weights; or `int8`,
published differences. A change of the base model, by FedEx-LoRA and FLoRA, comes in addition.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks import figures
from benchmarks.communication import MB, MODELS, Model, _down, _model, _up
from coordinator.strategies.opening import OpenedPlan, open_plan
from schemas.maths.adapter import Layout, size
from schemas.maths.layout import client_layout
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan
from schemas.messages.recipes import SERVED_DIFFERENCES, Recipe
from schemas.messages.recommendations import recommended
from schemas.messages.updates import WeightsManifest
from schemas.strategies.registry import strategy_names
from schemas.wire.compress import compress_pieces
from schemas.wire.envelope import head

ROUNDS: Final = 10
"""Rounds of the federation whose bytes are added up; the final weights come in addition."""

SHAPES: Final = (
    _model("SmolLM2-135M", 30, 576, 192, 1536),
    MODELS[0],
    _model("Llama-3.1-8B", 32, 4096, 1024, 14336),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one client sends in a round, and receives in its first round, a later one and at the end.

    In bytes; `own_last` by the recipes that refer to its updates, `int8` by published differences.
    """

    model: str
    strategy: str
    values: int
    up: int
    own_last: tuple[int, int, int]
    int8: tuple[int, int, int]

    def ratio(self, down: tuple[int, int, int]) -> float:
        """Return the bytes down over the bytes up of a federation of `ROUNDS` rounds."""
        first, later, final = down
        return (first + (ROUNDS - 1) * later + final) / (ROUNDS * self.up)


def measure(model: Model) -> list[Row]:
    """Encode the bodies of every strategy for one base model, and of `fedmosaic` over several base models."""
    encoded_up, encoded_down = cache(_up_of), cache(_down_of)
    rows = []
    for name, aligned in [*((name, False) for name in strategy_names()), ("fedmosaic", True)]:
        opened = _opened(name, aligned)
        layout = _layout(opened, model)
        key, recipe = tuple(layout.items()), opened.plan.wire.recipe
        zeros, dense = _first(layout)
        coded = encoded_down(key)
        is_exact = opened.options.base_delta
        later = dense if is_exact or recipe.is_dense or recipe.reference == "served" else coded
        own_last = (dense, later, dense)
        int8 = own_last if is_exact else (zeros, coded, coded)
        label = f"{name}, several base models" if aligned else name
        rows.append(Row(model.name, label, size(layout), encoded_up(key, recipe), own_last, int8))
        settled = getattr(opened.options, "density", None)
        if settled is not None:
            up = encoded_up(key, recipe.model_copy(update={"density": settled}))
            rows.append(replace(rows[-1], strategy=f"{name} after its warm-up", up=up))
    return rows


def _opened(name: str, aligned: bool) -> OpenedPlan:
    parts = {"name": "bytes", "strategy": {"name": name}} | recommended(name, aligned=aligned)
    return open_plan(FederationPlan.model_validate(parts))


def _layout(opened: OpenedPlan, model: Model) -> Layout:
    profile = Profile(
        architecture="LlamaForCausalLM",
        base_model="bytes-000000000000",
        hidden_size=model.shapes["q"][1],
        layers=model.layers,
        shapes=model.shapes,
        agent_version="0",
        protocol_version=2,
    )
    options = opened.options
    return client_layout(opened.plan.adapter, profile, None, travels=options.travels, beside=options.beside)


def _up_of(layout: tuple[tuple[str, tuple[int, ...]], ...], recipe: Recipe) -> int:
    return _up(dict(layout), recipe)


def _down_of(layout: tuple[tuple[str, tuple[int, ...]], ...]) -> int:
    """Return the size of weights in 8 bits; streams are equally long against updates and against weights."""
    return _down(dict(layout), SERVED_DIFFERENCES["int8"])


def _first(layout: Layout) -> tuple[int, int]:
    """Return the sizes of the frame of a new client's weights, which are zero, and of dense weights."""
    manifest = WeightsManifest(
        federation="fed_" + "0" * 24, recipe={}, round=1, client="cli_" + "0" * 24, pack=None
    )
    beginning, count = head(layout, manifest), size(layout)
    pieces = (bytes(4 * min(2**20, count - at)) for at in range(0, count, 2**20))
    dense = len(beginning) + 4 * count
    return len(compress_pieces([beginning, *pieces], dense)), dense


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.strategy_bytes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/strategy_bytes.json"))
    arguments = parser.parse_args()
    console, rows = Console(width=140), []
    columns = (
        "strategy",
        "values",
        "MB up",
        "own_last: first",
        "later",
        "int8: first",
        "later",
        "down / up",
    )
    for model in SHAPES:
        measured = measure(model)
        rows += measured
        figures.show(console, model.name, columns, [_shown(row) for row in measured])
    figures.write(arguments.out, {**figures.machine(), "rows": [asdict(row) for row in rows]})


def _shown(row: Row) -> tuple[str, ...]:
    down = (*row.own_last[:2], *row.int8[:2])
    ratio = f"{row.ratio(row.own_last):.1f}, {row.ratio(row.int8):.1f}"
    return (row.strategy, f"{row.values:,}", f"{row.up / MB:.3f}", *(f"{n / MB:.3f}" for n in down), ratio)


if __name__ == "__main__":
    main()
