"""Measure writing and reading an update in each recipe, beside copying its float32 values.

    python -m benchmarks.codec [--values 10000000] [--out FILE.json]

The values are normally distributed, in one tensor. Processor seconds are the least of three runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import figures
from schemas.messages.recipes import NAMED, Recipe
from schemas.wire.compress import compress
from schemas.wire.streams import bound, decode, encode

RECIPES: Final[dict[str, Recipe]] = {
    **{str(name): recipe for name, recipe in NAMED.items()},
    "top10_int4_served": Recipe(reference="served", density=0.1, values="int4"),
    "top1_int8_served": Recipe(reference="served", density=0.01, values="int8"),
}
_RUNS = 3


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.codec",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--values", type=int, default=10_000_000, help="values (default: 10,000,000)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/codec.json"))
    arguments = parser.parse_args()
    result = measure(arguments.values)
    figures.write(arguments.out, {**figures.machine(), **result})
    columns = (
        "recipe",
        "encode s",
        "/ copy",
        "decode s",
        "/ copy",
        "bytes a value",
        "zstd",
        "bound",
        "error",
    )
    figures.show(
        Console(), f"{arguments.values:,} values", columns, [_row(item, result) for item in result["recipes"]]
    )


def measure(count: int) -> dict[str, Any]:
    """Encode and decode so many values in every recipe."""
    values = np.random.default_rng(0).normal(size=count).astype(np.float32)
    target = np.empty_like(values)
    copy = _seconds(lambda: np.copyto(target, values))[0]
    return {"values": count, "copy": copy, "recipes": [_measure(name, values) for name in RECIPES]}


def _measure(name: str, values: NDArray[np.float32]) -> dict[str, Any]:
    recipe, layout = RECIPES[name], {"b0.q.P": values.shape}
    encoding, coded = _seconds(lambda: encode({"b0.q.P": values}, recipe, "benchmark"))
    decoding, observed = _seconds(lambda: dict(decode(coded, layout, recipe))["b0.q.P"])
    raw = b"".join(stream.tobytes() for stream in coded.tensors.values())
    return {
        "recipe": name,
        "encode": encoding,
        "decode": decoding,
        "bytes_per_value": len(raw) / values.size,
        "compressed_per_value": len(compress(raw)) / values.size,
        "bound_per_value": bound(layout, recipe) / values.size,
        "relative_error": float(np.linalg.norm(observed - values) / np.linalg.norm(values)),
    }


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    least, result = float("inf"), None
    for _ in range(_RUNS):
        began = time.process_time()
        result = work()
        least = min(least, time.process_time() - began)
    return least, result


def _row(item: dict[str, Any], result: dict[str, Any]) -> tuple[str, ...]:
    copy = max(result["copy"], 1e-9)
    seconds = (f(item[name]) for name in ("encode", "decode") for f in (_three, lambda s: f"{s / copy:.0f}"))
    sizes = (_three(item[f"{name}_per_value"]) for name in ("bytes", "compressed", "bound"))
    return (item["recipe"], *seconds, *sizes, _three(item["relative_error"]))


def _three(number: float) -> str:
    return f"{number:.3f}"


if __name__ == "__main__":
    main()
