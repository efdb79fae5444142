"""Natural Instructions v2 (Wang et al. 2022): a task's definition, an input and its target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from client_agent.data.row import Row
from client_agent.model.examples import Example


def examples(rows: Iterable[Row]) -> Iterator[Example]:
    """Columns `id`, `definition`, `inputs` and `targets`; of the rows of one `id` the first is learnt."""
    ids: set[str] = set()
    for row in rows:
        item = row.text("id")
        if item not in ids:
            ids.add(item)
            prompt = f"{row.text('definition')}\n\nInput: {row.text('inputs')}\nOutput:"
            yield Example(prompt, f" {row.text('targets')}")
