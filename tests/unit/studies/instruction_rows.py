"""Tasks in the schema of Natural Instructions, as rows of the hub and as task files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from studies.study import Study, read_study
from tests.scene.agent_processes import MODELS
from tests.scene.studies import TINY

TASKS = {
    "task1_boat_translation": ("Translate the name of the boat.", "Translation"),
    "task2_boat_backwards": ("Write the translation backwards.", "Translation"),
    "task3_cargo_query": ("Write an SQL query for the cargo.", "Code"),
    "task4_cargo_answer": ("Answer the question about the cargo.", "Question Answering"),
    "task5_crew_answer": ("Answer with the number of the crew. Do not translate.", "Question Answering"),
}
KEYWORDS = """
[partition]
kind = "by_keyword"
[partition.keywords]
code = ["sql"]
language = ["translat"]
answers = ["answer"]
"""
CATEGORIES = """
[partition]
kind = "by_category"
categories = ["Translation", "Question Answering"]
"""


def rows_of(task: str, numbers: Iterable[int]) -> list[dict[str, object]]:
    """Return rows of a task as the hub has them."""
    definition, _ = TASKS[task]
    return [
        {
            "task_name": task,
            "id": f"{task}-{number}",
            "definition": definition,
            "inputs": f"boat {number}",
            "targets": f"{task[4]}{number % 7}",
        }
        for number in numbers
    ]


def write_rows(folder: Path, train: int = 30, tests: int = 8, tasks: Iterable[str] = TASKS) -> Path:
    """Write train.jsonl and test.jsonl of all tasks, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, numbers in (("train", range(train)), ("test", range(100, 100 + tests))):
        rows = [row for task in tasks for row in rows_of(task, numbers)]
        (folder / f"{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_task_files(folder: Path, numbers: Iterable[int]) -> Path:
    """Write a file of each task, as the original collection has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, (definition, category) in TASKS.items():
        instances = [{"input": row["inputs"], "output": [row["targets"]]} for row in rows_of(task, numbers)]
        content = {"Definition": [definition], "Categories": [category], "Instances": instances}
        (folder / f"{task}.json").write_text(json.dumps(content, indent=1))
    return folder


def write_study(
    folder: Path, partition: str, silos: int = 4, *, source: str = 'train = "rows"', more: str = ""
) -> Path:
    """Write a study whose silos have the tasks of one source."""
    names = [f'[[silo]]\nname = "silo-{number}"' for number in range(silos)]
    plan = "".join(
        f"plan.{table}.{key} = {json.dumps(value)}\n"
        for table, values in TINY.items()
        for key, value in values.items()
        if table != "alignment"
    )
    head = f"tests = 4\nvalidation = 2\nseeds = [0]\n{plan}{more}\n[defaults]\nmodel = '{MODELS['S']}'\n"
    row_source = f'[[source]]\nname = "instructions"\nformat = "natural_instructions"\n{source}'
    file = folder / "study.toml"
    file.write_text("\n".join([head + "examples = 6", partition, row_source, *names]))
    return file


def study(folder: Path, partition: str, silos: int = 4, **options: str) -> Study:
    """Write rows of the hub and a study of them, and read it."""
    write_rows(folder / "rows")
    return read_study(write_study(folder, partition, silos, **options))
