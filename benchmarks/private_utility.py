"""Measure what differentially private training leaves of its use, alone and federated, by epsilon.

    python -m benchmarks.private_utility [--epsilons 1 3 8 16] [--draws 5] [--silos 3] [--examples 128]
        [--rounds 3] [--steps 8] [--batch 16] [--rates 0.01] [--out FILE.json]
    python -m benchmarks.private_utility --study examples/studies/groups.toml --task "question type" \\
        --data FOLDER [--layers 4] [--only-b] ...

Silos of one task train a LoRA with the agent's own loop and private steps: each alone, or federated by the
plain mean after each round (FedAvg). With --only-b A is drawn once for all silos and stays (FFA-LoRA), so
that the mean of the adapters is that of their changes, noise included. All rounds of a silo cost epsilon
together; without noise the steps are plain. The loss and, for answers with options, the share of right
options are on held-out examples, the mean over silos, after the last round. Standard errors are over draws
of all data. With several rates each row has the one with the least loss, which makes all rows equally
optimistic. With a study of one base model the silos are those of one of its groups, with its text; otherwise
they have the task `cipher` on examples/models/tiny-s. Trainings that are stored in FILE.json are not
repeated.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from benchmarks import figures
from benchmarks.forgetting import spread
from benchmarks.private_training import TINY, NoLedger
from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.adapters.lora import LoraAdapter
from client_agent.adapters.partial_lora import PartialLora
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.privacy.release import Mechanism
from client_agent.privacy.training import training_mechanism
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training.batched_gradients import batched_gradients
from client_agent.training.evaluate import evaluate
from client_agent.training.loop import train
from client_agent.training.private_steps import PrivateSteps
from client_agent.training.silo import dtype_named
from examples.tasks import TASKS, draw
from schemas.maths.adapter import factor_of
from schemas.messages.federations import AdapterPlan, ScoresPlan, TrainingPlan
from schemas.messages.private_training import PrivateTrainingPlan
from studies.partition import draw_examples
from studies.study import Study, read_study

TASK = "cipher"
HELD_OUT = 32
"""Examples of each silo."""
MAX_LENGTH = 64
FACTS = (
    "study",
    "data",
    "task",
    "silos",
    "examples",
    "rounds",
    "steps",
    "batch",
    "rank",
    "layers",
    "clip",
    "exact",
    "only_b",
)
COLUMNS = ("epsilon", "noise", "alone", "federated", "federated - alone", "right alone", "right federated")

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class SiloRows:
    """Examples of one silo."""

    train: Sequence[Example]
    test: Sequence[Example]


@dataclass(frozen=True, slots=True)
class Measured:
    """One draw of one setting: means over silos of the loss and of the share of right options, if any."""

    draw: int
    epsilon: float | None
    rate: float
    federated: bool
    loss: float
    right: float | None


@dataclass(frozen=True, slots=True)
class Trial:
    """What all trainings of a comparison have in common."""

    base: BaseModel
    adapter: AdapterPlan
    plan: TrainingPlan
    rounds: int
    batched: bool
    only_b: bool

    def measured(
        self,
        silos: Sequence[SiloRows],
        mechanism: Mechanism | None,
        rate: float,
        *,
        federated: bool,
        seed: int,
    ) -> tuple[float, float | None]:
        """Train all silos from zero, and score what each ends with."""
        with inject_lora(self.base, self.adapter, seed=seed) as lora:
            adapter = trained_part(lora, only_b=self.only_b)
            start = adapter.state()
            steps = [self._steps(adapter, silo, mechanism) for silo in silos]
            states: list[Arrays] = [start for _ in silos]
            moments: list[Arrays | None] = [None for _ in silos]
            for number in range(1, self.rounds + 1):
                for place, silo in enumerate(silos):
                    adapter.load(states[place])
                    outcome = train(
                        self.base,
                        adapter,
                        encode_for(self.base, silo.train, MAX_LENGTH),
                        self.plan,
                        learning_rate=rate,
                        seed=seed,
                        round_number=number,
                        total_rounds=self.rounds,
                        optimiser_state=moments[place],
                        private=steps[place],
                    )
                    states[place], moments[place] = adapter.state(), outcome.optimiser_state
                if federated:
                    common = {name: np.mean([s[name] for s in states], axis=0) for name in start}
                    states = [common for _ in silos]
            scores = [self._scored(adapter, state, silo) for state, silo in zip(states, silos, strict=True)]
        right = [share for _, share in scores if share is not None]
        return mean(loss for loss, _ in scores), mean(right) if right else None

    def _steps(self, adapter: Adapter, silo: SiloRows, mechanism: Mechanism | None) -> PrivateSteps | None:
        if mechanism is None:
            return None
        records = [encode_for(self.base, [example], MAX_LENGTH) for example in silo.train]
        texts = [text for record in records for text in record]
        parameters = adapter.named_parameters()
        batched = batched_gradients(self.base, parameters, texts, self.plan) if self.batched else None
        return PrivateSteps(records, mechanism, NoLedger(), batched)

    def _scored(self, adapter: Adapter, state: Arrays, silo: SiloRows) -> tuple[float, float | None]:
        adapter.load(state)
        plan = ScoresPlan(examples=len(silo.test), new_tokens=0)
        scores = evaluate(self.base, silo.test, plan, max_length=MAX_LENGTH).scores()
        right = scores.get("option_accuracy")
        return scores["loss"].value, right.value if right is not None else None


def trained_part(lora: LoraAdapter, *, only_b: bool) -> Adapter:
    """Return the adapter as `ffa_lora` trains it, or whole."""
    if not only_b:
        return lora
    return PartialLora(lora, is_b, is_b)


def is_b(tensor: str) -> bool:
    """Whether a tensor is a factor B."""
    return factor_of(tensor) == "B"


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.private_utility",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--study", type=Path, help="study whose base model and text are used (default: tiny-s)"
    )
    parser.add_argument("--data", type=Path, help="folder of the study's data (default: the study's)")
    parser.add_argument("--task", default=TASK, help=f"tiny task, or group of the study (default: {TASK})")
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0, 8.0, 16.0])
    parser.add_argument("--draws", type=int, default=5, help="(default: 5)")
    parser.add_argument(
        "--silos", type=int, default=3, help="of a tiny task; a study has its own (default: 3)"
    )
    parser.add_argument("--examples", type=int, default=128, help="of each silo (default: 128)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--steps", type=int, default=8, help="of a round (default: 8)")
    parser.add_argument("--batch", type=int, default=16, help="(default: 16)")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01], help="(default: 0.01)")
    parser.add_argument("--rank", type=int, default=4, help="(default: 4)")
    parser.add_argument("--layers", type=int, help="adapters in the last layers only (default: in all)")
    parser.add_argument("--clip", type=float, default=0.1, help="(default: 0.1)")
    parser.add_argument(
        "--only-b", action="store_true", help="train B, one A for all silos (default: A and B)"
    )
    parser.add_argument("--exact", action="store_true", help="exact gradients (default: batched)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/private_utility.json"))
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    study = read_study(arguments.study, data=arguments.data) if arguments.study is not None else None
    if study is not None and len(study.models) != 1:
        parser.error(f"{arguments.study} has {len(study.models)} base models: the comparison needs one")
    cpu = torch.device("cpu")
    if study is None:
        base = load_base_model(str(TINY), device=cpu)
    else:
        base = load_base_model(
            study.models[0], device=cpu, dtype=dtype_named(study.silo[0].dtype, cpu, "none")
        )
    adapter = AdapterPlan(kind="lora", rank=arguments.rank, roles=("q", "v"), layers=arguments.layers)
    plan = TrainingPlan(
        steps=arguments.steps,
        batch_size=arguments.batch,
        learning_rate=arguments.rates[0],
        schedule="linear",
        max_length=MAX_LENGTH,
    )
    trial = Trial(base, adapter, plan, arguments.rounds, not arguments.exact, arguments.only_b)
    facts = facts_of(arguments, base)
    measured = stored(arguments.out, facts)
    done = {(run.draw, run.epsilon, run.rate, run.federated) for run in measured}
    levels: list[float | None] = [None, *arguments.epsilons]
    noise_of = cache(lambda epsilon: mechanism_of(trial, arguments.examples, arguments.clip, epsilon))
    total = arguments.draws * len(levels) * len(arguments.rates) * 2
    with Progress(console=console) as progress, TemporaryDirectory() as folder:
        base.prefix.store = PrefixStore(Path(folder), 2**32)
        bar = progress.add_task("trainings", total=total)
        for number in range(arguments.draws):
            if study is None:
                silos = tiny_silos(arguments.task, arguments.silos, arguments.examples, number)
            else:
                silos = text_silos(study, arguments.task, arguments.examples, number)
            for epsilon in levels:
                for rate in arguments.rates:
                    for federated in (False, True):
                        if (number, epsilon, rate, federated) not in done:
                            mechanism = noise_of(epsilon) if epsilon is not None else None
                            scores = trial.measured(silos, mechanism, rate, federated=federated, seed=number)
                            measured.append(Measured(number, epsilon, rate, federated, *scores))
                            rows = [asdict(run) for run in measured]
                            figures.write(arguments.out, {**figures.machine(), **facts, "runs": rows})
                        progress.advance(bar)
    title = f"{base.slug}, {arguments.task}: held-out loss after {arguments.rounds * arguments.steps} steps"
    shown = [run for run in measured if run.draw < arguments.draws and run.rate in arguments.rates]
    figures.show(console, title, COLUMNS, table(shown, levels, noise_of))


def tiny_silos(task: str, silos: int, examples: int, seed: int) -> list[SiloRows]:
    """Draw the examples of all silos; none is in two of them, or held out and trained on."""
    rng = random.Random(f"private utility:{task}:{seed}")
    rows = draw(TASKS[task], silos * (examples + HELD_OUT), rng)
    pool = [Example(row.prompt, row.completion) for row in rows]
    tests = pool[silos * examples :]
    return [
        SiloRows(
            pool[place * examples : (place + 1) * examples], tests[place * HELD_OUT : (place + 1) * HELD_OUT]
        )
        for place in range(silos)
    ]


def text_silos(study: Study, group: str, examples: int, seed: int) -> list[SiloRows]:
    """Draw the examples of the silos of a study's group.

    Raises:
        SystemExit: the study has no such group.
    """
    names = [silo.name for silo in study.silo if silo.group == group]
    if not names:
        groups = ", ".join(sorted({silo.group for silo in study.silo if silo.group}))
        raise SystemExit(f"--task {group}: the study has no such group; its groups are {groups}")
    data = draw_examples(study.with_examples(examples).with_tests(HELD_OUT), seed)
    return [SiloRows(data[name].train, data[name].test) for name in names]


def mechanism_of(trial: Trial, records: int, clip: float, epsilon: float) -> Mechanism:
    """Return the mechanism of a step, of which all of a silo cost `epsilon`."""
    with inject_lora(trial.base, trial.adapter) as lora:
        trained = trained_part(lora, only_b=trial.only_b).named_parameters()
        dim = sum(parameter.numel() for parameter in trained.values())
    # A plan allows 10 at most; what more would bring is a question of this comparison.
    dp = PrivateTrainingPlan(epsilon=1.0, clip=clip, steps=trial.rounds * trial.plan.steps)
    dp = dp.model_copy(update={"epsilon": epsilon})
    return training_mechanism(records, dim, trial.plan, dp)


def facts_of(arguments: argparse.Namespace, base: BaseModel) -> dict[str, Any]:
    """Return what makes trainings comparable: a study or data of one name may change their base model."""
    named = {name: json.loads(json.dumps(getattr(arguments, name), default=str)) for name in FACTS}
    return {"model": base.slug, "dtype": str(base.model.dtype).removeprefix("torch."), **named}


def stored(file: Path, facts: dict[str, Any]) -> list[Measured]:
    """Return the trainings in a file that are of these facts."""
    if not file.is_file():
        return []
    content = json.loads(file.read_text("utf-8"))
    return [Measured(**run) for run in content["runs"]] if facts.items() <= content.items() else []


def table(
    measured: Sequence[Measured], levels: Sequence[float | None], noise_of: Callable[[float], Mechanism]
) -> list[list[str]]:
    """Return a row of each epsilon, at the best rate of each side: means over draws, standard errors."""
    rows = []
    for epsilon in levels:
        sides = [best(measured, epsilon, federated=federated) for federated in (False, True)]
        alone, federated = ([run.loss for run in side] for side in sides)
        right = [[run.right for run in side if run.right is not None] for side in sides]
        gains = [after - before for before, after in zip(alone, federated, strict=True)]
        rows.append(
            [
                "no noise" if epsilon is None else f"{epsilon:g}",
                "" if epsilon is None else f"{noise_of(epsilon).noise_multiplier:.2f}",
                spread(alone),
                spread(federated),
                spread(gains),
                *(spread(shares) if shares else "" for shares in right),
            ]
        )
    return rows


def best(measured: Sequence[Measured], epsilon: float | None, *, federated: bool) -> list[Measured]:
    """Return the draws of the rate with the least mean loss, in order."""
    own = [run for run in measured if run.epsilon == epsilon and run.federated == federated]
    by_rate = [[run for run in own if run.rate == rate] for rate in {run.rate for run in own}]
    return sorted(min(by_rate, key=lambda draws: mean(run.loss for run in draws)), key=lambda run: run.draw)


if __name__ == "__main__":
    main()
