"""Measure how often the right option of a multiple-choice question is the likeliest for a bare model.

    python -m benchmarks.option_accuracy --data FOLDER --model MODEL [--rows 100] [--form plain|chat|listed]
        [--only NAME ...] [--out FILE.json]

FOLDER holds a folder for each data set, named as its task template, with a `test.jsonl` as on the hub.
The score is that of a round (`scores.option_accuracy`), so what this prints can be compared with published
scores of the model, and with a silo's. Data sets whose answers have no options are left out.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path
from string import ascii_uppercase

import torch
from rich.console import Console
from rich.progress import track

from benchmarks import figures
from client_agent.data.load import RowOptions, load_examples
from client_agent.data.templates import template_names
from client_agent.model.examples import Example, Turn
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.training.evaluate import evaluate
from schemas.messages.federations import ScoresPlan

_MAX_LENGTH = 1024
_AT_ONCE = 10
_METRIC = "option_accuracy"
_COLUMNS = ["data set", "rows", "accuracy", "standard error", "chance", "most frequent option"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The score on one data set, beside those of guessing and of always the most frequent position."""

    rows: int
    accuracy: float
    chance: float
    most_frequent: float

    @property
    def standard_error(self) -> float:
        return sqrt(self.accuracy * (1 - self.accuracy) / self.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the option accuracy of a model without an adapter.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--only", nargs="*", help="The data sets; by default all that have options.")
    parser.add_argument(
        "--form",
        choices=_FORMS,
        default="plain",
        help="The template's prompt; the same in a user's turn; or with the options listed in the prompt.",
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    console = Console(stderr=True)
    torch.set_num_threads(int(os.environ.get(figures.THREADS_VARIABLE, "0")) or torch.get_num_threads())
    base = load_base_model(options.model, device=torch.device("cpu"))
    measured: dict[str, Accuracy] = {}
    for name, examples in multiple_choice(options.data, options.only).items():
        selected = [_FORMS[options.form](example) for example in examples[: options.rows]]
        measured[name] = measure(base, selected, name, console)
    rows = [
        [name, a.rows, a.accuracy, a.standard_error, a.chance, a.most_frequent]
        for name, a in measured.items()
    ]
    figures.show(Console(), f"option accuracy of {base.slug}, {options.form}", _COLUMNS, rows)
    if options.out is not None:
        scores = {name: asdict(a) | {"standard_error": a.standard_error} for name, a in measured.items()}
        facts = {"machine": figures.machine(), "model": base.slug, "form": options.form, "scores": scores}
        figures.write(options.out, facts)


def multiple_choice(folder: Path, only: Sequence[str] | None = None) -> dict[str, list[Example]]:
    """Load the held-out examples of every data set in a folder whose answers have options.

    Raises:
        SystemExit: there is none.
    """
    by_name = {}
    for name in only or template_names():
        file = folder / name / "test.jsonl"
        if file.is_file():
            examples = list(load_examples(str(file), RowOptions(format=name)).examples)
            if _METRIC in examples[0].metrics:
                by_name[name] = examples
    if not by_name:
        raise SystemExit(f"--data: {folder} has no <task template>/test.jsonl with options")
    return by_name


def as_chat(example: Example) -> Example:
    """Return a plain example as a chat: its prompt is the user's turn, its options are answers."""
    return replace(
        example,
        prompt="",
        turns=(Turn("user", example.prompt),),
        completion=example.completion.strip(),
        options=tuple(option.strip() for option in example.options),
    )


def as_listed(example: Example) -> Example:
    """Return an example whose options are listed, by letters, before the last line of its prompt."""
    question, _, last = example.prompt.rpartition("\n")
    lettered = zip(ascii_uppercase, example.options, strict=False)
    lines = [f"{letter}. {option.strip()}" for letter, option in lettered]
    return replace(example, prompt="\n".join([question, *lines, last]))


_FORMS: dict[str, Callable[[Example], Example]] = {
    "plain": lambda example: example,
    "chat": as_chat,
    "listed": as_listed,
}


def measure(base: BaseModel, examples: Sequence[Example], name: str, console: Console) -> Accuracy:
    """Score examples, a few at a time, with their progress on the console."""
    plan, length = ScoresPlan(examples=_AT_ONCE, new_tokens=0), min(_MAX_LENGTH, base.positions)
    scores = []
    for start in track(range(0, len(examples), _AT_ONCE), description=name, console=console):
        group = examples[start : start + _AT_ONCE]
        scores.append(evaluate(base, group, plan, max_length=length).metrics[_METRIC])
    rows = sum(score.count for score in scores)
    positions = [example.options.index(example.completion) for example in examples]
    return Accuracy(
        rows=rows,
        accuracy=sum(score.value * score.count for score in scores) / rows,
        chance=sum(1 / len(example.options) for example in examples) / len(examples),
        most_frequent=max(positions.count(p) for p in set(positions)) / len(examples),
    )


if __name__ == "__main__":
    main()
