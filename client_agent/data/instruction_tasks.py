"""The task files of Natural Instructions: one JSON object with a definition and its instances."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

from client_agent.data.json_text import fault_of
from client_agent.data.row import Row

_NUMBER = re.compile(r"\d+")
_SAVED_BY_DATASETS = ("dataset_info.json", "dataset_dict.json", "state.json")


def is_task(content: object) -> TypeGuard[dict[str, object]]:
    """Whether the content of a JSON file is a task with its definition and instances."""
    return (
        isinstance(content, dict) and "Definition" in content and isinstance(content.get("Instances"), list)
    )


def task_files(folder: Path) -> list[Path]:
    """Return the task files of a folder in order of their numbers; empty = it holds no tasks."""
    if any((folder / name).exists() for name in _SAVED_BY_DATASETS):
        return []
    files = [file for file in folder.glob("*.json") if file.name.startswith(("task", "subtask"))]
    return sorted(files, key=lambda file: ([int(digits) for digits in _NUMBER.findall(file.stem)], file.name))


def task_rows(file: Path, content: Mapping[str, object]) -> Iterator[Row]:
    """Yield the instances of a task as rows of the data set on the hub, with the task's categories.

    The columns are `task_name`, `id`, `definition`, `inputs`, `targets` (a list) and `categories`.
    """
    task_columns = {
        "task_name": file.stem,
        "definition": _joined(content["Definition"]),
        "categories": content.get("Categories"),
    }
    instances = content["Instances"]
    assert isinstance(instances, list)  # `is_task` checks it
    for number, instance in enumerate(instances, start=1):
        place = f"{file} instance {number}"
        if not isinstance(instance, Mapping):
            yield Row(place, {}, fault="not an object with input and output")
            continue
        if (fault := fault_of(instance)) is not None:
            yield Row(place, {}, fault=fault)
            continue
        columns = {
            "id": instance.get("id"),
            "inputs": instance.get("input", ""),
            "targets": instance.get("output"),
        }
        yield Row(place, task_columns | columns)


def _joined(definition: object) -> object:
    """Return a definition, which may be a list of paragraphs, as text."""
    if isinstance(definition, list) and all(isinstance(part, str) for part in definition):
        return "\n".join(definition)
    return definition
