"""BoolQ (Clark et al. 2019): a yes/no question about a passage."""

from __future__ import annotations

from client_agent.data.formats import per_row
from client_agent.data.multiple_choice import question_with_options
from client_agent.data.row import Row
from client_agent.model.examples import Example

OPTIONS = (" no", " yes")


def example(row: Row) -> Example:
    """Columns `question`, `passage` and `answer` (true or false)."""
    prompt = f"{row.text('passage')}\nQuestion: {row.text('question')}?\nAnswer yes or no:"
    return question_with_options(prompt, OPTIONS, row.choice("answer", (False, True)))


examples = per_row(example)
