"""SQuAD (Rajpurkar et al. 2016): a question about a paragraph, answered with a part of it."""

from __future__ import annotations

from client_agent.data.formats import per_row
from client_agent.data.row import Row
from client_agent.model.examples import Example


def example(row: Row) -> Example:
    """Columns `context`, `question` and `answers.text`, of which the first is learnt."""
    prompt = f"{row.text('context')}\nQuestion: {row.text('question')}\nAnswer:"
    return Example(prompt, f" {row.texts('answers.text')[0]}")


examples = per_row(example)
