"""Measure what `training.anchor_pull` costs and bounds: forgetting, the loss of the task, time per step.

    python -m benchmarks.forgetting --model FOLDER [--data FOLDER] [--strengths 0 0.1 1 10] [--seeds 3]
        [--steps 24] [--rate 0.001] [--layers 6] [--out FILE.json]

One silo trains a LoRA of rank 16 with the agent's own loop: on messages of the first tutorial, or on the rows
of a data set with a task template (`--data data/ag_news`). Public texts are paragraphs of this repository's
documentation: half of them are the anchors, the other half is held out. Each seed divides messages and
paragraphs anew, and trains once with each strength. Forgetting is the loss on the held-out paragraphs, in
nats per token, minus that of the bare model. Differences are to strength 0 of the same seed; a step's time is
processor time, as a share of a step without the pull. Standard errors are over seeds. Trainings that are
stored in FILE.json are not repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks import figures
from benchmarks.tutorial_draws import silos_of_tutorial
from client_agent.adapters.inject import inject_lora
from client_agent.anchor_pull.pull import pull_to_bare
from client_agent.data.load import RowOptions, load_examples
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training.evaluate import mean_loss
from client_agent.training.loop import Step, train
from schemas.messages.alignment import Anchor
from schemas.messages.federations import AdapterPlan, TrainingPlan
from schemas.wire.digests import digest_of

DOCS: Final = Path(__file__).parent.parent / "docs" / "explanation"
RANK = 16
PUBLIC = 64
"""Paragraphs of a seed: half of them are anchors."""
LETTERS = 100
"""Of a paragraph."""
TRAINED, HELD_OUT = 24, 12
MAX_LENGTH = 64
COLUMNS = ("strength", "forgetting", "difference", "loss of the task", "difference", "time of a step")


@dataclass(frozen=True, slots=True)
class Draw:
    """Data of one seed."""

    train: Sequence[Example]
    test: Sequence[Example]
    anchors: Sequence[Anchor]
    public: Sequence[Example]


@dataclass(frozen=True, slots=True)
class Trained:
    """One training: losses in nats per token, and the median processor seconds of a step after the first."""

    seed: int
    strength: float
    forgetting: float
    task: float
    step_seconds: float


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forgetting",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="folder of a base model, as runs/models/smollm2")
    parser.add_argument("--data", type=Path, help="folder with train.jsonl, named as its task template")
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.0, 0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--steps", type=int, default=24, help="(default: 24, as the tutorial)")
    parser.add_argument("--rate", type=float, default=0.001, help="learning rate (default: 0.001)")
    parser.add_argument("--layers", type=int, help="adapters in the last layers only (default: in all)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/forgetting.json"))
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    base = load_base_model(arguments.model, device=torch.device("cpu"))
    adapter = AdapterPlan(kind="lora", rank=RANK, layers=arguments.layers)
    pool, strengths = messages(arguments.data), sorted({0.0, *arguments.strengths})
    plan = TrainingPlan(
        steps=arguments.steps,
        batch_size=4,
        learning_rate=arguments.rate,
        schedule="linear",
        max_length=MAX_LENGTH,
    )
    facts = {
        "model": base.slug,
        "data": str(arguments.data or "tutorial"),
        "texts": texts_digest(pool),
        "plan": plan.model_dump(mode="json"),
        "adapter": adapter.model_dump(mode="json"),
    }
    runs = stored_runs(arguments.out, facts)
    done = {(run.seed, run.strength) for run in runs}
    with Progress(console=console) as progress, TemporaryDirectory() as folder:
        base.prefix.store = PrefixStore(Path(folder), 2**32)
        bar = progress.add_task("trainings", total=arguments.seeds * len(strengths))
        for seed in range(arguments.seeds):
            draw = drawn(pool, seed)
            for strength in strengths:
                if (seed, strength) not in done:
                    runs.append(trained(base, adapter, draw, plan, seed, strength))
                    stored = [asdict(run) for run in runs]
                    figures.write(arguments.out, {**figures.machine(), **facts, "runs": stored})
                progress.advance(bar)
    title = f"{base.slug}, {arguments.steps} steps at {arguments.rate:g}, {arguments.seeds} seeds"
    shown = [run for run in runs if run.seed < arguments.seeds and run.strength in strengths]
    figures.show(console, title, COLUMNS, table(shown))


def stored_runs(file: Path, facts: dict[str, Any]) -> list[Trained]:
    """Return the trainings in a file that are of these facts."""
    if not file.is_file():
        return []
    stored = json.loads(file.read_text("utf-8"))
    return [Trained(**run) for run in stored["runs"]] if facts.items() <= stored.items() else []


def messages(folder: Path | None) -> list[Example]:
    """Return the messages of the first tutorial, or the first rows of a data set."""
    if folder is not None:
        return list(
            load_examples(str(folder / "train.jsonl"), RowOptions(format=folder.name)).examples[:1000]
        )
    rows = [json.loads(line) for lines in silos_of_tutorial().values() for line in lines]
    return [Example(row["prompt"], row["completion"]) for row in rows]


def paragraphs() -> list[str]:
    """Return the beginnings of the prose paragraphs of the documentation."""
    blocks = [block for file in sorted(DOCS.glob("*.md")) for block in file.read_text("utf-8").split("\n\n")]
    prose = [" ".join(block.split()) for block in blocks if re.match(r"[A-Z][a-z]+ ", block)]
    return [text[:LETTERS].rpartition(" ")[0] for text in prose if len(text) > LETTERS]


def texts_digest(pool: Sequence[Example]) -> str:
    """Return a digest of all messages and paragraphs, which change with the repository."""
    texts = [[example.prompt, example.completion] for example in pool]
    return digest_of(json.dumps([texts, paragraphs()]).encode())


def drawn(pool: Sequence[Example], seed: int) -> Draw:
    """Divide messages and paragraphs; nothing held out is trained on."""
    rng = random.Random(f"forgetting:{seed}")
    rows = rng.sample(pool, min(len(pool), TRAINED + HELD_OUT))
    texts = rng.sample(paragraphs(), PUBLIC)
    anchors = [Anchor(id=f"p{n}", prompt=text[:8], answer=text[8:]) for n, text in enumerate(texts[::2])]
    return Draw(rows[HELD_OUT:], rows[:HELD_OUT], anchors, [Example("", text) for text in texts[1::2]])


def trained(
    base: BaseModel, adapter_plan: AdapterPlan, draw: Draw, plan: TrainingPlan, seed: int, strength: float
) -> Trained:
    """Train from zero at a strength."""
    ends: list[float] = []
    public, test = encode_for(base, draw.public, MAX_LENGTH), encode_for(base, draw.test, MAX_LENGTH)

    def on_step(_: Step) -> None:
        ends.append(time.process_time())

    with inject_lora(base, adapter_plan, seed=seed) as adapter:
        bare = mean_loss(base, public)  # B is zero
        train(
            base,
            adapter,
            encode_for(base, draw.train, MAX_LENGTH),
            plan,
            learning_rate=float(plan.learning_rate),
            seed=seed,
            round_number=1,
            total_rounds=1,
            penalty=pull_to_bare(base, draw.anchors, strength, plan) if strength else None,
            on_step=on_step,
        )
        forgetting = mean_loss(base, public) - bare
        task = mean_loss(base, test)
    seconds = median(after - before for before, after in pairwise(ends))
    return Trained(seed, strength, forgetting, task, seconds)


def table(runs: Sequence[Trained]) -> list[list[str]]:
    """Return a row of each strength: means over seeds and their standard errors."""
    free = {run.seed: run for run in runs if not run.strength}
    rows = []
    for strength in sorted({run.strength for run in runs}):
        own = [run for run in runs if run.strength == strength]
        rows.append(
            [
                f"{strength:g}",
                spread([run.forgetting for run in own]),
                spread([run.forgetting - free[run.seed].forgetting for run in own]) if strength else "",
                spread([run.task for run in own]),
                spread([run.task - free[run.seed].task for run in own]) if strength else "",
                f"{median(run.step_seconds / free[run.seed].step_seconds for run in own):.2f}",
            ]
        )
    return rows


def spread(values: Sequence[float]) -> str:
    """Return a mean and its standard error."""
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{mean(values):.3f} ± {error:.3f}"


if __name__ == "__main__":
    main()
