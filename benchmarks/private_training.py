"""Measure the cost of differentially private training: held-out loss, and time per step.

    python -m benchmarks.private_training [--records 256 1024] [--draws 3] [--out FILE.json]
    python -m benchmarks.private_training --steps-only [--model FOLDER] [--batches 8 32] [--repeats 5]

One silo trains a LoRA of examples/models/tiny-s on the task cipher, with the agent's own loop and its own
private steps, without a federation: loss on held-out examples after all steps, at the best of a few learning
rates by that loss. A second table has the processor time of a step without privacy, with exact and with
batched gradients: the median of repetitions in which all three take turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks import figures
from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.privacy.release import Mechanism
from client_agent.privacy.training import training_mechanism
from client_agent.training.batched_gradients import batched_gradients
from client_agent.training.evaluate import mean_loss
from client_agent.training.loop import Step, train
from client_agent.training.private_steps import PrivateSteps
from examples.tasks import TASKS, draw
from schemas.messages.federations import AdapterPlan, TrainingPlan
from schemas.messages.private_training import PrivateTrainingPlan

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "examples" / "models" / "tiny-s"
SIDES = ("plain", "exact", "batched")
TASK = "cipher"
HELD_OUT = 64
BUDGETS = (8.0, 4.0, 1.0)
RATES = (3e-3, 1e-2, 3e-2)
BATCHES = (32,)
ADAPTER = AdapterPlan(kind="lora", rank=4, roles=("q", "v"))
STEPS = 40
CLIP = 0.1
TIMED = 10


@dataclass(frozen=True, slots=True)
class NoLedger:
    """No ledger: the examples of a benchmark are public."""

    def pay(self, steps: int) -> None:
        return None

    def begin_step(self) -> None:
        return None


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.private_training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=int, nargs="+", default=[256, 1024], help="(default: 256 1024)")
    parser.add_argument("--draws", type=int, default=3, help="draws of the examples (default: 3)")
    parser.add_argument("--steps-only", action="store_true", help="measure the time of steps alone")
    parser.add_argument("--model", default=str(TINY), help="base model of the steps (default: tiny-s)")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[8, 32], help="of the steps (default: 8 32)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of the steps (default: 5)")
    parser.add_argument("--timed", type=int, default=TIMED, help=f"steps of a repetition (default: {TIMED})")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/private_training.json"))
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    facts: dict[str, Any] = (
        {} if arguments.steps_only else _losses(console, arguments.records, arguments.draws)
    )
    base = load_base_model(arguments.model, device=torch.device("cpu"))
    times = [
        step_times(base, drawn(256, 0), batch, repeats=arguments.repeats, timed=arguments.timed)
        for batch in arguments.batches
    ]
    figures.write(arguments.out, {**figures.machine(), **facts, "model": base.slug, "step times": times})
    columns = ("batch", *SIDES, "exact / plain", "batched / plain", "comparison")
    rows = [[str(case[column]) for column in columns] for case in times]
    figures.show(console, f"{base.slug}: milliseconds of processor time of a step", columns, rows)


def _losses(console: Console, sizes: Sequence[int], draws: int) -> dict[str, Any]:
    """Measure and show the losses of all cases; return them with their facts."""
    base = load_base_model(str(TINY), device=torch.device("cpu"))
    cases = [*product(sizes, BATCHES, (None, *BUDGETS))]
    measured = []
    with Progress(console=console) as progress:
        bar = progress.add_task("trainings", total=len(cases) * len(RATES) * draws)
        for records, batch, epsilon in cases:
            losses: dict[float, list[float]] = {rate: [] for rate in RATES}
            noise = 0.0
            for seed, rate in product(range(draws), RATES):
                loss, noise = trained_loss(base, drawn(records, seed), batch, epsilon, rate)
                losses[rate].append(loss)
                progress.advance(bar)
            measured.append(_case(records, batch, epsilon, noise, losses))
    start = statistics.mean(start_loss(base, drawn(64, seed)) for seed in range(draws))
    columns = ("examples", "batch", "epsilon", "noise", "rate", "held-out loss")
    rows = [[str(case[column]) for column in columns] for case in measured]
    figures.show(console, f"after {STEPS} steps; {start:.2f} at the start", columns, rows)
    return {"draws": draws, "steps": STEPS, "start": start, "cases": measured}


@dataclass(frozen=True, slots=True)
class Sample:
    """Training and held-out examples of one draw."""

    train: list[Example]
    held_out: list[Example]


def drawn(records: int, seed: int) -> Sample:
    """Draw different examples; the held-out ones are those of no training set."""
    pool = draw(TASKS[TASK], records + HELD_OUT, random.Random(f"private training:{seed}"))
    examples = [Example(item.prompt, item.completion) for item in pool]
    return Sample(examples[HELD_OUT:], examples[:HELD_OUT])


def plan_of(batch: int, rate: float, steps: int) -> TrainingPlan:
    """Return the plan of a training."""
    return TrainingPlan(steps=steps, batch_size=batch, learning_rate=rate, max_length=64)


def steps_of(
    base: BaseModel, adapter: Adapter, data: Sample, plan: TrainingPlan, epsilon: float
) -> PrivateSteps:
    """Return private steps, of which all of a plan cost `epsilon`."""
    dim = sum(parameter.numel() for parameter in adapter.named_parameters().values())
    dp = PrivateTrainingPlan(epsilon=epsilon, clip=CLIP, steps=plan.steps)
    records = [encode_for(base, [example], plan.max_length) for example in data.train]
    return PrivateSteps(records, training_mechanism(len(records), dim, plan, dp), NoLedger())


def trained_loss(
    base: BaseModel, data: Sample, batch: int, epsilon: float | None, rate: float
) -> tuple[float, float]:
    """Train from zero; return the loss on the held-out examples, in nats per answer token, and the noise."""
    with inject_lora(base, ADAPTER) as adapter:
        plan = plan_of(batch, rate, STEPS)
        private = steps_of(base, adapter, data, plan, epsilon) if epsilon is not None else None
        _train(base, adapter, data, plan, private)
        noise = private.mechanism.noise_multiplier if private is not None else 0.0
        return start_loss(base, data), noise


def start_loss(base: BaseModel, data: Sample) -> float:
    """Return the loss of the base model on the held-out examples."""
    return mean_loss(base, encode_for(base, data.held_out, 64))


def step_times(base: BaseModel, data: Sample, batch: int, *, repeats: int, timed: int) -> dict[str, Any]:
    """Return the median processor time of a step of each side in milliseconds, and the ratios to plain ones.

    A repetition measures all sides in turn, and has the mean of its steps: samples differ in size.
    """
    plan = plan_of(batch, 1e-3, timed)
    milliseconds: dict[str, list[float]] = {side: [] for side in (*SIDES, "comparison")}
    with inject_lora(base, ADAPTER) as adapter:
        parameters = adapter.named_parameters()
        dim = sum(parameter.numel() for parameter in parameters.values())
        records = [encode_for(base, [example], plan.max_length) for example in data.train]
        # The time does not depend on the noise, whose search takes seconds.
        exact = PrivateSteps(records, Mechanism(batch, len(records), 1.0, CLIP, dim), NoLedger())
        for _ in range(repeats):
            started = time.process_time()
            texts = [text for record in records for text in record]
            batched = replace(exact, batched=batched_gradients(base, parameters, texts, plan))
            milliseconds["comparison"].append(1e3 * (time.process_time() - started))
            for side, private in zip(SIDES, (None, exact, batched), strict=True):
                milliseconds[side].append(1e3 * _mean_step(base, adapter, data, plan, private))
    ratios = {
        f"{side} / plain": statistics.median(
            own / plain for own, plain in zip(milliseconds[side], milliseconds["plain"], strict=True)
        )
        for side in SIDES[1:]
    }
    medians = {name: statistics.median(values) for name, values in milliseconds.items()} | ratios
    return {"batch": batch, **{name: round(value, 2) for name, value in medians.items()}}


def _mean_step(
    base: BaseModel, adapter: Adapter, data: Sample, plan: TrainingPlan, private: PrivateSteps | None
) -> float:
    """Return the mean processor time of a step after the first, in seconds."""
    ends: list[float] = []
    _train(base, adapter, data, plan, private, lambda _: ends.append(time.process_time()))
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def _train(
    base: BaseModel,
    adapter: Adapter,
    data: Sample,
    plan: TrainingPlan,
    private: PrivateSteps | None,
    on_step: Callable[[Step], None] | None = None,
) -> None:
    """Train for the steps of a plan."""
    train(
        base,
        adapter,
        encode_for(base, data.train, plan.max_length),
        plan,
        learning_rate=float(plan.learning_rate),
        seed=0,
        round_number=1,
        total_rounds=1,
        private=private,
        on_step=on_step,
    )


def _case(
    records: int, batch: int, epsilon: float | None, noise: float, losses: dict[float, list[float]]
) -> dict[str, Any]:
    best = min(losses, key=lambda rate: statistics.mean(losses[rate]))
    return {
        "examples": records,
        "batch": batch,
        "epsilon": epsilon if epsilon is not None else "no noise",
        "noise": noise,
        "rate": best,
        "held-out loss": round(statistics.mean(losses[best]), 3),
    }


if __name__ == "__main__":
    main()
