"""CommonsenseQA (Talmor et al. 2019): a question and its options."""

from __future__ import annotations

from client_agent.data.formats import per_row
from client_agent.data.multiple_choice import question_and_choices
from client_agent.data.row import Row
from client_agent.model.examples import Example


def example(row: Row) -> Example:
    """Columns `question`, `choices` and `answerKey`."""
    return question_and_choices(row, row.text("question"))


examples = per_row(example)
