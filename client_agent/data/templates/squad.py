"""SQuAD (Rajpurkar et al. 2016): a question about a paragraph, answered with a part of it."""

from __future__ import annotations

from client_agent.data.formats import per_row
from client_agent.data.row import Row
from client_agent.model.examples import Example


def example(row: Row) -> Example:
    """Columns `context`, `question` and `answers.text`, of which the first is learnt and each is right."""
    prompt = f"{row.text('context')}\nQuestion: {row.text('question')}\nAnswer:"
    answers = row.texts("answers.text")
    unique = tuple(dict.fromkeys(answers))
    return Example(prompt, f" {answers[0]}", references=unique, metrics=("f1", "exact_match"))


examples = per_row(example)
