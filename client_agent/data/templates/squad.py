"""SQuAD (Rajpurkar et al. 2016): a question about a paragraph, answered with a part of it."""

from __future__ import annotations

from client_agent.data.formats import per_row
from client_agent.data.row import Row
from client_agent.model.examples import Example


def example(row: Row) -> Example:
    """Columns `context`, `question` and `answers.text`; the first answer is learnt, all are references."""
    references = row.texts("answers.text")
    prompt = f"{row.text('context')}\nQuestion: {row.text('question')}\nAnswer:"
    return Example(prompt, f" {references[0]}", references=references, metrics=("f1", "exact_match"))


examples = per_row(example)
