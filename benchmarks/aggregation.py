"""Measure relevance aggregation, G = W U from a real database, beside the bare product of the same arrays.

    python -m benchmarks.aggregation [--clients 256] [--values 1000000] [--postgres URL] [--out FILE.json]

W (N, N) is dense, U (N, D) float32. Three programs, each in a process of its own so that its peak memory is
its own: `tessera` aggregates a closed round (reads N states, weighs, multiplies, writes N new bodies,
publishes); `product` is NumPy's W @ U in float32 and nothing else; `files` reads U from N files, multiplies,
and writes G to N files, synced. `tessera_unwritten` reads, weighs and multiplies only, to show both parts.
`agreement` is what the guard of a personalised strategy adds: another pass over the states, U U^T, its law.
Without sizes, N = 256, D = 1e6 is followed by smaller ones that show growth in N and in D.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import figures
from benchmarks.aggregation_programs import PROGRAMS, Place, prepare
from benchmarks.aggregation_report import draw, show
from benchmarks.closed_round import layout_of
from benchmarks.memory import MIB
from schemas.maths.adapter import size

SIZES = ((256, 1_000_000), (64, 1_000_000), (128, 1_000_000), (256, 250_000), (256, 500_000))


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aggregation", description=__doc__)
    parser.add_argument("--clients", type=int, help="N; with --values, instead of the usual sizes")
    parser.add_argument("--values", type=int, help="D")
    parser.add_argument("--block-mib", type=int, default=192, help="the coordinator's block budget")
    parser.add_argument("--repeats", type=int, default=3, help="how often each program runs; medians count")
    parser.add_argument("--postgres", help="URL of an empty database, instead of a SQLite file")
    parser.add_argument("--folder", type=Path, help="where the database is, on the disk to be measured")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/aggregation.json"))
    arguments = parser.parse_args()
    if (arguments.clients is None) != (arguments.values is None):
        parser.error("--clients and --values belong together")
    sizes = SIZES if arguments.clients is None else ((arguments.clients, arguments.values),)
    result: dict[str, Any] = {"machine": figures.machine(), "block_mib": arguments.block_mib, "sizes": []}
    console = Console()
    for clients, values in sizes:
        measured = measure(
            clients,
            values,
            block_mib=arguments.block_mib,
            repeats=arguments.repeats,
            folder=arguments.folder,
            database_url=arguments.postgres,
        )
        result["sizes"].append(measured)
        console.print(f"N = {clients}, D = {values}: {measured['ratio']:.2f} x the bare product")
    figures.write(arguments.out, result)
    show(console, result)
    draw(arguments.out.with_suffix(".svg"), result)
    console.print(f"figures in {arguments.out}")


def measure(
    clients: int, values: int, *, block_mib: int, repeats: int, folder: Path | None, database_url: str | None
) -> dict[str, Any]:
    """Run each program `repeats` times over the same arrays; return medians, and ratios of medians.

    Raises:
        ProgramFailed: one of them did not work.
        AssertionError: their results differ.
    """
    runs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=folder) as block:
            url = database_url or f"sqlite:///{Path(block) / 'tessera.db'}"
            place = Place(url, Path(block), clients, values, block_mib)
            _in_a_process_of_its_own(prepare, place)
            runs.append(
                {name: _in_a_process_of_its_own(program, place) for name, program in PROGRAMS.items()}
            )
    for run in runs:
        np.testing.assert_allclose(run["tessera"]["sample"], run["product"]["sample"], rtol=1e-3, atol=1e-4)
    stored = ("seconds", "cpu_seconds", "idle_rss_mib", "peak_rss_mib")
    cost = {
        name: {key: statistics.median(run[name][key] for run in runs) for key in stored} for name in PROGRAMS
    }
    return {
        "clients": clients,
        "values": size(layout_of(values)),
        "mib": clients * size(layout_of(values)) * 4 / MIB,
        "repeats": repeats,
        **cost,
        "ratio": cost["tessera"]["seconds"] / cost["product"]["seconds"],
        "ratio_without_writing": cost["tessera_unwritten"]["seconds"] / cost["product"]["seconds"],
        "ratio_of_guard": cost["agreement"]["seconds"] / cost["product"]["seconds"],
        "ratio_to_files": cost["tessera"]["seconds"] / cost["files"]["seconds"],
    }


def _in_a_process_of_its_own(program: Callable[[Place], Any], place: Place) -> Any:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(program, place).result()


if __name__ == "__main__":
    main()
