"""Comparisons of methods: planned, run as a command, and finished without training."""

from __future__ import annotations

from math import inf
from pathlib import Path

import typer
from typer.testing import CliRunner

from studies.command import compare
from studies.compare import Comparison
from studies.results import Cell, CellResult, store_divergence, store_result
from studies.study import Study, read_study
from tests.scene.studies import result, write_pools, write_study


def planned_comparison(folder: Path, **changes: object) -> Comparison:
    read = read_study(write_study(folder)).model_copy(update=changes)
    return Comparison.planned(read, folder / "out", ["local", "fedavg"], None)


def run_compare(file: Path, *arguments: str) -> tuple[int, str]:
    """Run the command; return its exit status, and its output without frames and line breaks."""
    app = typer.Typer()
    app.add_typer(compare)
    done = CliRunner().invoke(app, ["compare", str(file), "--out", str(file.parent / "out"), *arguments])
    return done.exit_code, " ".join(done.stderr.replace("\u2502", " ").split())


BOTH = ["local_lora", "fedit"]


def fair_study(folder: Path, more: str = "", *, seeds: str = "[1, 2]") -> Study:
    """Write a study with the rules of `more` or the default ones, no rate, and validation examples."""
    file = write_study(folder, more=more if "fair." in more else "fair = {}\n" + more)
    text = file.read_text().replace("plan.training.learning_rate = 0.01\n", "")
    text = text.replace("validation = 2", "validation = 16").replace("seeds = [0, 1]", f"seeds = {seeds}")
    file.write_text(text)
    write_pools(folder, 60)
    return read_study(file)


def planned_fair_comparison(folder: Path, more: str = "", methods: list[str] | None = None) -> Comparison:
    return Comparison.planned(fair_study(folder, more), folder / "out", methods or BOTH, None)


def store_finished(comparison: Comparison, cell: Cell, loss: float) -> CellResult:
    """Store a result whose validation and test loss is `loss`."""
    done = result(
        cell.method, cell.seed, {"aster": (9, loss, loss), "birch": (9, loss, loss)}, validated=True
    )
    done = done.model_copy(update={"digest": cell.digest, "plan": cell.plan, "alone": cell.alone})
    store_result(cell, comparison.out, done)
    return done


def finish_searches(comparison: Comparison, losses: dict[float, float]) -> list[str]:
    """Finish the missing runs until none is a search; return the labels of these."""
    labels: list[str] = []
    while searches := [cell for cell in comparison.missing() if cell.seed == 0]:
        for cell in searches:
            labels.append(cell.label)
            assert cell.rate is not None
            if losses[cell.rate] == inf:
                store_divergence(cell, comparison.out)
            else:
                store_finished(comparison, cell, losses[cell.rate])
    return labels
