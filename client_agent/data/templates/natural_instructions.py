"""Natural Instructions v2 (Wang et al. 2022): a task's definition, an input and its targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from client_agent.data.row import Row, shown
from client_agent.model.examples import Example, Task


def examples(rows: Iterable[Row]) -> Iterator[Example]:
    """Columns `definition`, `inputs`, `targets` (a text or several); perhaps `task_name` and `categories`.

    Rows with the same definition and input are one item, whatever their `id`: no input is on two sides of a
    split. The first target is learnt, and each is a reference.
    """
    targets: dict[str, dict[str, None]] = {}
    tasks: dict[str, Task | None] = {}
    by_name: dict[str, Task] = {}  # an object for each task, not for each row
    for row in rows:
        row.optional("id")
        prompt = _prompt(row)
        task = task_of(row)
        tasks.setdefault(prompt, by_name.setdefault(task.name, task) if task is not None else None)
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


def task_of(row: Row) -> Task | None:
    """Return the task of a row; None if the rows have no column `task_name`.

    Raises:
        DataInvalid: its name, definition or categories are no texts.
    """
    categories = row.texts("categories") if row.optional("categories") else ()
    if not row.has(["task_name"]):
        return None
    return Task(row.text("task_name").strip(), row.text("definition").strip(), categories)


def _prompt(row: Row) -> str:
    prompt = f"### Instruction:\n{row.text('definition').strip()}\n\n"
    inputs = row.value("inputs")
    if not isinstance(inputs, str):
        raise row.invalid("inputs", f"is not a text but {shown(inputs)}")
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
