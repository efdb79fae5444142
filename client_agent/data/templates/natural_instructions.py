"""Natural Instructions v2 (Wang et al. 2022): a task's definition, an input and its targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from client_agent.data.row import Row, shown
from client_agent.model.examples import Example

_UNLEARNT = ("id", "categories")


def examples(rows: Iterable[Row]) -> Iterator[Example]:
    """Columns `definition`, `inputs`, `targets` (a text or several), and perhaps `task_name`.

    Rows with the same definition and input are one item, whatever their `id`: no input is on two sides of a
    split. The first target is learnt, and each is a reference.
    """
    targets: dict[str, dict[str, None]] = {}
    tasks: dict[str, str] = {}
    for row in rows:
        for column in _UNLEARNT:
            row.optional(column)
        prompt = _prompt(row)
        tasks.setdefault(prompt, task_of(row))
        targets.setdefault(prompt, {}).update(dict.fromkeys(_targets(row)))
    for prompt, by_target in targets.items():
        references = tuple(by_target)
        yield Example(
            prompt,
            references[0],
            references=references,
            metrics=("rouge_l", "exact_match"),
            task=tasks[prompt],
        )


def task_of(row: Row) -> str:
    """Return the name of a row's task; an empty text if the rows have no such column."""
    return row.text("task_name").strip() if row.has(["task_name"]) else ""


def _prompt(row: Row) -> str:
    prompt = f"### Instruction:\n{row.text('definition').strip()}\n\n"
    inputs = row.value("inputs")
    if not isinstance(inputs, str):
        raise row.invalid("inputs", f"is no text but {shown(inputs)}")
    if inputs.strip():  # some tasks are their definition alone
        prompt += f"### Input:\n{inputs.strip()}\n\n"
    return prompt + "### Response:\n"


def _targets(row: Row) -> tuple[str, ...]:
    if isinstance(row.value("targets"), str):
        return (row.text("targets").strip(),)
    texts = tuple(text.strip() for text in row.texts("targets"))
    if not all(texts):
        raise row.invalid("targets", "has an entry that is empty")
    return texts
