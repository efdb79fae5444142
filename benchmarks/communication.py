"""Bytes of one client in one round, both ways, for the adapters of real models, in real encoded bodies.

    python -m benchmarks.communication [--out FILE.json]

Shapes are those of the public configurations of Llama-3.2-3B and Mistral-7B; no base weights are needed. The
values are normally distributed, which compresses no better than what is learnt. Bodies are those of agent and
coordinator: manifest, sketch (256 numbers up) and zstd frame included, HTTP and JSON not.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks import figures
from schemas.maths.adapter import SIGNATURE, Layout, block_modules, in_order, lora_layout, pq_layout, size
from schemas.messages.federations import ALL_ROLES
from schemas.messages.recipes import NAMED, Recipe, SentRecipe
from schemas.messages.updates import Manifest, UpdateManifest, WeightsManifest
from schemas.wire.digests import digest_of
from schemas.wire.envelope import Array, pack
from schemas.wire.streams import encode

MB = 1e6
_BLOCKS = 4
_SKETCH_DIM = 256
_DIGEST = digest_of(b"")

CA_PFL: Final = Recipe(reference="served", density=0.27, values="int8")
"""The density that CA-PFL's published runs kept on average."""


@dataclass(frozen=True, slots=True)
class Model:
    """The linear layers of a base model by its configuration: (d_out, d_in) by role."""

    name: str
    layers: int
    shapes: dict[str, tuple[int, int]]

    def lora(self, roles: tuple[str, ...], rank: int) -> Layout:
        """Lay out an ordinary LoRA on every layer."""
        return lora_layout(self.layers, {role: self.shapes[role] for role in roles}, rank)


def _model(name: str, layers: int, hidden: int, key_value: int, inner: int) -> Model:
    shapes = {
        "q": (hidden, hidden),
        "k": (key_value, hidden),
        "v": (key_value, hidden),
        "o": (hidden, hidden),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    return Model(name, layers, shapes)


MODELS: Final = (
    _model("Llama-3.2-3B", 28, 3072, 1024, 8192),
    _model("Mistral-7B", 32, 4096, 1024, 14336),
)
PUBLISHED: Final = {
    "Llama-3.2-3B": (("CA-PFL, published", 7.19), ("FedEx-LoRA, published", 41.29)),
    "Mistral-7B": (("CA-PFL, published", 21.4), ("FedEx-LoRA, published", 95.6)),
}
"""MB, of one client, up only, at 12 bytes for each value that is not 0; Mistral with a doubled adapter."""


@dataclass(frozen=True, slots=True)
class Row:
    """The bytes that one client sends and receives in a round."""

    model: str
    case: str
    values: int
    up: int
    down: int


def measure(model: Model) -> list[Row]:
    """Encode every case for one base model."""
    qv = model.lora(("q", "v"), 8)
    both = in_order(pq_layout(block_modules(_BLOCKS, ALL_ROLES), 32) | model.lora(tuple(ALL_ROLES), 8))
    f32, bf16 = NAMED["dense"], NAMED["bf16"]
    int4, int8 = NAMED["int4_own_last"], NAMED["int8_own_last"]
    cases = [
        ("LoRA r=8 on q, v, dense float32", qv, f32, f32),
        ("LoRA r=8 on q, v, dense bfloat16", qv, bf16, bf16),
        ("LoRA r=8 on q, v, int8 / int8", qv, int8, int8),
        ("LoRA r=8 on q, v, int4 / int8 (default)", qv, int4, int8),
        ("CA-PFL, 27 %, int8 / float32", qv, CA_PFL, f32),
        *(
            (f"P, Q r={rank}, {reported}", pq_layout(block_modules(_BLOCKS, ALL_ROLES), rank), up, down)
            for rank in (16, 32, 128)
            for reported, up, down in (
                ("dense float32", f32, f32),
                ("int4 / int8 (default)", int4, int8),
                ("int4 / int4", int4, int4),
            )
        ),
        ("P, Q r=32 and LoRA r=8 on all roles, int4 / int8", both, int4, int8),
    ]
    return [
        Row(model.name, label, size(layout), _up(layout, up), _down(layout, down))
        for label, layout, up, down in cases
    ]


def _up(layout: Layout, recipe: Recipe) -> int:
    random = np.random.default_rng(1)
    sketch: dict[str, Array] = {SIGNATURE: random.normal(size=_SKETCH_DIM).astype(np.float32)}
    manifest = UpdateManifest(
        federation="fed_" + "0" * 24,
        recipe=_as_text(recipe),
        round=7,
        client="cli_" + "0" * 24,
        base=_DIGEST,
        pack=_DIGEST,
        examples=1000,
        signature_reliability=0.9,
    )
    return len(pack(_tensors(layout, recipe) | sketch, manifest, compress=True))


def _down(layout: Layout, recipe: Recipe) -> int:
    manifest: Manifest = WeightsManifest(
        federation="fed_" + "0" * 24,
        recipe=_as_text(recipe),
        round=7,
        client="cli_" + "0" * 24,
        pack=_DIGEST,
    )
    return len(pack(_tensors(layout, recipe), manifest, compress=not recipe.is_dense))  # stored plain


def _tensors(layout: Layout, recipe: Recipe) -> dict[str, Array]:
    random = np.random.default_rng(0)
    values = {name: random.normal(size=shape).astype(np.float32) for name, shape in layout.items()}
    if recipe.is_dense:
        return dict(values)
    return dict(encode(values, recipe, "communication").tensors)


def _as_text(recipe: Recipe) -> dict[str, object]:
    if recipe.is_dense:
        return {}
    against = _DIGEST if recipe.reference != "none" else None
    return SentRecipe(**recipe.model_dump(), against=against).model_dump(mode="json")


def _picture(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(8.4, 4.6 * len(MODELS)), layout="constrained")
    for axes, model in zip(figure.subplots(len(MODELS), squeeze=False)[:, 0], MODELS, strict=True):
        selected = [row for row in rows if row.model == model.name]
        published = PUBLISHED[model.name]
        names = [row.case for row in selected] + [name for name, _ in published]
        places = np.arange(len(names), 0, -1)
        up = [row.up / MB for row in selected] + [mb for _, mb in published]
        bars = axes.barh(places + 0.2, up, 0.38, color="#1f4e79", label="up")
        axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=7)
        down = axes.barh(
            places[: len(selected)] - 0.2,
            [r.down / MB for r in selected],
            0.38,
            color="#7aa6c2",
            label="down",
        )
        axes.bar_label(down, fmt="%.3g", padding=3, fontsize=7)
        axes.set_yticks(places, names)
        axes.set(xscale="log", title=model.name, xlabel="MB of a client and round (published: up only)")
        axes.margins(x=0.15)
        axes.legend(frameon=False)
    return figure


def main() -> None:
    """Measure, show, judge, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.communication",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/communication.json"))
    arguments = parser.parse_args()
    console, rows = Console(), [row for model in MODELS for row in measure(model)]
    for model in MODELS:
        shown: list[tuple[object, ...]] = [
            (row.case, f"{row.values:,}", f"{row.up / MB:.4f}", f"{row.down / MB:.4f}")
            for row in rows
            if row.model == model.name
        ]
        shown += [(name, "", f"{mb:.2f}", "not told") for name, mb in PUBLISHED[model.name]]
        figures.show(console, model.name, ("adapter, up / down", "values", "MB up", "MB down"), shown)
    first = {row.case: row for row in rows if row.model == MODELS[0].name}
    default = first["P, Q r=32, int4 / int8 (default)"]
    goals = [
        figures.FigureLimit(
            "CA-PFL at 27 %, Llama-3.2-3B, MB up", first["CA-PFL, 27 %, int8 / float32"].up / MB, 1.0
        ),
        figures.FigureLimit("FedMosaic's default, MB up", default.up / MB, 0.1),
        figures.FigureLimit("FedMosaic's default, MB down", default.down / MB, 0.1),
    ]
    figures.judge(console, goals)
    figures.write(arguments.out, {**figures.machine(), "rows": [asdict(row) for row in rows]})
    with figures.style():
        figures.save(arguments.out.with_suffix(".svg"), _picture(rows))
    console.print(f"figures in {arguments.out}, a picture beside it")


if __name__ == "__main__":
    main()
