"""MNLI (Williams et al. 2018): does a premise entail a hypothesis?"""

from __future__ import annotations

from client_agent.data.formats import per_row
from client_agent.data.multiple_choice import question_with_options
from client_agent.data.row import Row
from client_agent.model.examples import Example

LABELS = (" entailment", " neutral", " contradiction")


def example(row: Row) -> Example:
    """Columns `premise`, `hypothesis` and `label` (0, 1, 2); -1, of hidden test rows, is refused."""
    prompt = (
        f"Premise: {row.text('premise')}\nHypothesis: {row.text('hypothesis')}\n"
        "Is it entailment, neutral or contradiction?\nAnswer:"
    )
    return question_with_options(prompt, LABELS, row.choice("label", (0, 1, 2)))


examples = per_row(example)
