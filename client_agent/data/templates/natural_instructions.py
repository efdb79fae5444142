"""Natural Instructions v2 (Wang et al. 2022): a task's definition, an input, and its references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from client_agent.data.row import Row
from client_agent.model.examples import Example


def examples(rows: Iterable[Row]) -> Iterator[Example]:
    """Columns `id`, `definition`, `inputs` and `targets`; rows of one `id` are references of one example."""
    items: dict[str, list[Row]] = {}
    for row in rows:
        items.setdefault(row.text("id"), []).append(row)
    for same_item in items.values():
        yield _example(same_item)


def _example(rows: list[Row]) -> Example:
    references = tuple(dict.fromkeys(row.text("targets") for row in rows))
    first = rows[0]
    return Example(
        f"{first.text('definition')}\n\nInput: {first.text('inputs')}\nOutput:",
        f" {references[0]}",
        references=references,
        metrics=("rouge_l", "exact_match"),
    )
