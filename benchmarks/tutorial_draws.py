"""Check over many draws that the first tutorial ends with a better model than each silo's own training.

    python -m benchmarks.tutorial_draws --model MODEL [--draws 10] [--out FOLDER]

The messages and the plan are read from docs/tutorials/first-federation.md. Each draw divides the 18 messages
of each silo anew, 13 to train on and 5 to test, and runs the tutorial's federation by `tessera compare` with
a seed of its own, and each silo alone. As in the tutorial there are too few validation examples for a choice.
Draws that are stored in FOLDER are not run again.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorials" / "first-federation.md"
TESTS = 5
FEDERATED, ALONE = "fedmosaic_lora", "local_lora"


@dataclass(frozen=True, slots=True)
class End:
    """Test losses of one silo in one draw: bare model, alone, trained in the last round, final weights.

    `rounds` has the losses as served and as trained in each round.
    """

    draw: int
    silo: str
    bare: float
    alone: float
    trained: float
    final: float
    rounds: Sequence[tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tutorial_draws",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of SmolLM2, as in the tutorial")
    parser.add_argument("--draws", type=int, default=10, help="number of draws (default: 10)")
    parser.add_argument("--workers", type=int, default=2, help="draws at a time (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/tutorial_draws"))
    arguments = parser.parse_args()
    console = Console()
    with ThreadPoolExecutor(arguments.workers) as pool:
        studies = [
            write_study(draw, arguments.model, arguments.out / f"draw-{draw}")
            for draw in range(arguments.draws)
        ]
        ends: list[End] = []
        for draw, draw_ends in enumerate(pool.map(run_study, studies)):
            ends += draw_ends
            console.print(f"draw {draw + 1} of {len(studies)} has ended", highlight=False)
    show(ends, console)


def silos_of_tutorial() -> dict[str, list[str]]:
    """Return the lines of each silo's train.jsonl."""
    scripts = re.findall(
        r"cat > (\w+)/train\.jsonl <<'EOF'\n(.*?)\nEOF", TUTORIAL.read_text("utf-8"), re.DOTALL
    )
    return {name: text.splitlines() for name, text in scripts}


def plan_of_tutorial() -> dict[str, object]:
    """Return the plan, without the fields that a study sets."""
    text = re.search(r"cat > plan\.json <<'EOF'\n(.*?)\nEOF", TUTORIAL.read_text("utf-8"), re.DOTALL)
    if text is None:
        raise SystemExit(f"{TUTORIAL} has no plan.json any more; adapt benchmarks/tutorial_draws.py")
    plan: dict[str, object] = json.loads(text[1])
    return {
        "adapter": plan["adapter"],
        "rounds": {"total": plan["rounds"]["total"]},  # type: ignore[index]
        "training": plan["training"],
    }


def write_study(draw: int, model: Path, folder: Path) -> Path:
    """Write the study of one draw and its data; return the study's file."""
    lines = [f"tests = {TESTS}", "validation = 0", "forgetting = 0", f"seeds = [{draw}]"]
    lines += [f"methods = {json.dumps([ALONE, FEDERATED])}", "", "[plan]"]
    for table, fields in plan_of_tutorial().items():
        lines += [f"{table}.{name} = {json.dumps(value)}" for name, value in fields.items()]  # type: ignore[attr-defined]
    for name, rows in silos_of_tutorial().items():
        order = random.Random(f"{draw} {name}").sample(rows, len(rows))
        data = folder / name
        data.mkdir(parents=True, exist_ok=True)
        (data / "test.jsonl").write_text("\n".join(order[:TESTS]) + "\n", "utf-8")
        (data / "train.jsonl").write_text("\n".join(order[TESTS:]) + "\n", "utf-8")
        lines += ["", "[[silo]]", f'name = "{name}"', f"model = {json.dumps(str(model.resolve()))}"]
        lines += [f"train = {json.dumps(str(data.resolve()))}", f"examples = {len(rows) - TESTS}"]
    study = folder / "study.toml"
    study.write_text("\n".join(lines) + "\n", "utf-8")
    return study


def run_study(study: Path) -> list[End]:
    """Run a draw's study unless it is stored; return how its silos end."""
    command = [str(Path(sys.executable).with_name("tessera")), "compare", str(study), "--workers", "1"]
    done = subprocess.run(
        [*command, "--out", str(study.parent / "runs")], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return ends_of(study.parent / "runs", int(study.parent.name.partition("-")[2]))


def ends_of(out: Path, draw: int) -> list[End]:
    """Read the results of a draw."""
    alone, federated = (
        {
            client["name"]: client
            for client in json.loads((out / "cells" / f"{method}-seed-{draw}" / "result.json").read_text())[
                "clients"
            ]
        }
        for method in (ALONE, FEDERATED)
    )
    return [
        End(
            draw,
            name,
            bare=alone[name]["rounds"][0]["scores"]["served"]["loss"]["value"],
            alone=alone[name]["rounds"][-1]["scores"]["trained"]["loss"]["value"],
            trained=client["rounds"][-1]["scores"]["trained"]["loss"]["value"],
            final=client["final"]["scores"]["loss"]["value"],
            rounds=[
                (entry["scores"]["served"]["loss"]["value"], entry["scores"]["trained"]["loss"]["value"])
                for entry in client["rounds"]
            ],
        )
        for name, client in federated.items()
    ]


def show(ends: Sequence[End], console: Console) -> None:
    """Print the losses of each silo, and the paired differences over draws with their standard errors."""
    table = Table("draw", "silo", "bare", "alone", "trained", "final", "final - trained", "final - alone")
    for end in ends:
        losses = (end.bare, end.alone, end.trained, end.final)
        table.add_row(
            str(end.draw),
            end.silo,
            *(f"{loss:.3f}" for loss in losses),
            *(f"{end.final - loss:+.3f}" for loss in (end.trained, end.alone)),
        )
    console.print(table)
    for silo in dict.fromkeys(end.silo for end in ends):
        silo_ends = [end for end in ends if end.silo == silo]
        for name in ("trained", "alone"):
            differences = [end.final - getattr(end, name) for end in silo_ends]
            console.print(f"{silo}: final minus {name} {_estimated(differences)}", highlight=False)
        for number, _ in enumerate(silo_ends[0].rounds, 1):
            steps = [end.rounds[number - 1][1] - end.rounds[number - 1][0] for end in silo_ends]
            console.print(
                f"{silo}: round {number}, trained minus served {_estimated(steps)}", highlight=False
            )


def _estimated(differences: Sequence[float]) -> str:
    """Format a mean difference of losses with its standard error over draws."""
    count = len(differences)
    error = stdev(differences) / sqrt(count) if count > 1 else float("nan")
    worse = sum(difference > 0 for difference in differences)
    return f"{mean(differences):+.3f} ± {error:.3f}, higher in {worse} of {count}"


if __name__ == "__main__":
    main()
