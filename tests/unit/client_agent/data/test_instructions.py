"""Natural Instructions: rows as on the hub, and the task files of the original collection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from client_agent.data.load import RowOptions, load_examples
from client_agent.data.row import Row
from client_agent.data.templates import template
from client_agent.model.examples import Example, Task
from tests.unit.client_agent.data.rows import INSTRUCTIONS, write_task

TEA = {"task_name": "task1_tea", "id": "a", "definition": "Name the drink.", "inputs": "leaves"}


def examples(*records: dict[str, Any]) -> list[Example]:
    return list(template("natural_instructions")([Row("line", record) for record in records]))


def test_headings_stand_before_definition_input_and_answer() -> None:
    (item,) = examples(TEA | {"targets": "tea "})
    assert item.prompt == "### Instruction:\nName the drink.\n\n### Input:\nleaves\n\n### Response:\n"
    assert item.completion == "tea"
    assert item.task == Task("task1_tea", "Name the drink.")


def test_task_without_input_has_no_such_heading() -> None:
    (item,) = examples(TEA | {"targets": "tea", "inputs": " "})
    assert item.prompt == "### Instruction:\nName the drink.\n\n### Response:\n"


def test_rows_of_one_input_share_their_targets() -> None:
    """Whatever their ids are: rows of one input under two ids could be trained on and tested on."""
    first, second = examples(
        TEA | {"targets": "tea"},
        TEA | {"targets": ["a cup of tea", "tea"], "id": "b"},
        TEA | {"targets": "coffee", "inputs": "beans"},
    )
    assert first.references == ("tea", "a cup of tea")
    assert first.metrics == ("rouge_l", "exact_match")
    assert second.references == ("coffee",)


def test_task_files_equal_rows_of_the_hub(tmp_path: Path) -> None:
    write_task(
        tmp_path / "task2_tea.json",
        {"id": "task2-1", "input": "leaves", "output": ["tea", "green tea"]},
        {"id": "task2-2", "input": "beans", "output": ["coffee"]},
        categories=["Misc."],
    )
    write_task(tmp_path / "task10_tea.json", {"input": "milk", "output": "milk"})
    loaded = load_examples(str(tmp_path), INSTRUCTIONS)
    assert [item.task.name for item in loaded.examples if item.task] == [
        "task2_tea",
        "task2_tea",
        "task10_tea",
    ]
    assert loaded.examples[0].references == ("tea", "green tea")
    assert "Name the drink.\nOne word.\n" in loaded.examples[0].prompt
    assert loaded.unused.sentences() == []
    assert load_examples(str(tmp_path / "task2_tea.json"), INSTRUCTIONS).rows == 2
    assert loaded.examples[0].task == Task("task2_tea", "Name the drink.\nOne word.", ("Misc.",))


def test_bad_instance_is_named_with_its_file(tmp_path: Path) -> None:
    write_task(
        tmp_path / "task1.json", {"input": "leaves", "output": ["tea"]}, [], {"input": "x", "output": []}
    )
    loaded = load_examples(str(tmp_path), RowOptions("natural_instructions", skip_bad_rows=True))
    assert len(loaded.examples) == 1
    assert "task1.json instance 2: not an object" in loaded.skipped[0]
    assert "task1.json instance 3: column targets" in loaded.skipped[1]
