"""Natural Instructions v2 (Wang et al. 2022): a task's definition, an input and its target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from client_agent.data.row import Row
from client_agent.model.examples import Example


def examples(rows: Iterable[Row]) -> Iterator[Example]:
    """Columns `id`, `definition`, `inputs` and `targets`; rows of one `id` are one item.

    The target of the first row is learnt, and that of each row is a reference.
    """
    prompts: dict[str, str] = {}
    targets: dict[str, dict[str, None]] = {}
    for row in rows:
        item = row.text("id")
        prompts.setdefault(item, f"{row.text('definition')}\n\nInput: {row.text('inputs')}\nOutput:")
        targets.setdefault(item, {})[row.text("targets")] = None
    for item, prompt in prompts.items():
        references = tuple(targets[item])
        yield Example(prompt, f" {references[0]}", references=references, metrics=("rouge_l", "exact_match"))
