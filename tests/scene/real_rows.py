"""Rows in the schemas of public data sets, and folders for the studies of real models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from studies.study import Study, read_study
from tests.scene.agent_processes import EXAMPLES, MODELS

REAL = (
    "codes",
    "groups",
    "groups_experts",
    "groups_uneven",
    "natural_instructions",
    "obqa_boolq_winogrande_arc",
    "one_task",
    "real_four_peers",
    "real_one_round",
    "real_one_task",
    "real_same_base",
    "real_two_bases",
    "real_two_silos",
    "ten_clients",
    "ten_clients_small",
)
"""The studies of real models, which need --data and --models."""

REAL_MODEL_ONLY = ("helpdesks",)
"""Studies of a real model on text of our own, which need --models."""

TRAIN, TESTS = 96, 24
Row = dict[str, object]


def _choices(stem: str, things: str) -> Callable[[int], Row]:
    def row(number: int) -> Row:
        texts = [f"{number + step} {things}" for step in (1, 0, 2)]
        return {
            stem: f"How many {things} are {number} {things}",
            "choices": {"text": texts, "label": list("ABC")},
            "answerKey": "B",
        }

    return row


_DEFINITIONS = (
    "Translate the name of the ship.",
    "Write an SQL query for the ships.",
    "Write the disfluent sentence fluently.",
    "Answer the question about the ship.",
)


def _instruction(number: int) -> Row:
    task = number % len(_DEFINITIONS)
    return {
        "task_name": f"task{task}_ships",
        "id": f"task{task}-{number}",
        "definition": _DEFINITIONS[task],
        "inputs": f"ship {number}",
        "targets": f"harbour {number}",
    }


ROWS: dict[str, Callable[[int], Row]] = {
    "openbookqa": _choices("question_stem", "stones"),
    "commonsense_qa": _choices("question", "pears"),
    "arc_easy": _choices("question", "shells"),
    "arc_challenge": _choices("question", "ropes"),
    "boolq": lambda n: {
        "question": "is the number even",
        "passage": f"The number is {n}.",
        "answer": n % 2 == 0,
    },
    "winogrande": lambda n: {
        "sentence": f"Box {n} does not fit in the bag because the _ is small.",
        "option1": "box",
        "option2": "bag",
        "answer": "2",
    },
    "squad": lambda n: {
        "context": f"Mill {n} was built in {1700 + n} by a miller.",
        "question": f"When was mill {n} built?",
        "answers": {"text": [str(1700 + n)], "answer_start": [20]},
    },
    "mnli": lambda n: {
        "premise": f"Ship {n} left the harbour.",
        "hypothesis": f"Ship {n} moved.",
        "label": n % 3,
    },
    "gsm8k": lambda n: {
        "question": f"Ann has {n} pears and buys 2. How many has she?",
        "answer": f"{n} + 2 = {n + 2}\n#### {n + 2}",
    },
    "trec": lambda n: {"text": f"How many ropes has ship {n}?", "coarse_label": n % 6},
    "sick": lambda n: {
        "id": str(n),
        "sentence_A": f"Ship {n} is sailing",
        "sentence_B": f"Ship {n} is in the harbour ",
        "label": n % 3,
    },
    "natural_instructions": _instruction,
    "ag_news": lambda n: {"text": f"Ship {n} reaches the new harbour", "label": n % 4},
}


def write_folders(folder: Path) -> tuple[Path, Path]:
    """Write a folder of data sets, and a folder of the example models by the names of real ones."""
    data, models = folder / "data", folder / "models"
    for name, row in ROWS.items():
        (data / name).mkdir(parents=True)
        for side, numbers in (("train", range(TRAIN)), ("test", range(TRAIN, TRAIN + TESTS))):
            lines = [json.dumps(row(number)) + "\n" for number in numbers]
            (data / name / f"{side}.jsonl").write_text("".join(lines))
    for name, model in (("smollm2", "S"), ("gemma3", "L")):
        _link(models / name, model)
    for size, model in (("1B", "S"), ("3B", "L")):
        _link(models / "meta-llama" / f"Llama-3.2-{size}", model)
    return data, models


def read_studies(folder: Path) -> list[Study]:
    """Read the studies on text of our own, with the example models in place of real ones."""
    _, models = write_folders(folder)
    files = [file for file in sorted((EXAMPLES / "studies").glob("*.toml")) if file.stem not in REAL]
    return [read_study(file, models=models if file.stem in REAL_MODEL_ONLY else None) for file in files]


def _link(place: Path, model: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(MODELS[model])
