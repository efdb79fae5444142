"""GSM8K (Cobbe et al. 2021): a word problem; the reasoning and the number after `####` are learnt."""

from __future__ import annotations

import re

from client_agent.data.formats import per_row
from client_agent.data.row import Row
from client_agent.model.examples import Example

_CALCULATION = re.compile(r"<<[^<>]*>>")
MARK = "####"


def example(row: Row) -> Example:
    """Columns `question` and `answer`, whose last line is `#### <number>`; calculator marks are removed."""
    answer = _CALCULATION.sub("", row.text("answer"))
    reasoning, mark, number = answer.rpartition(MARK)
    if not mark or not number.strip() or not reasoning.strip():
        raise row.invalid("answer", f"does not end with {MARK} and a number")
    prompt = f"Question: {row.text('question')}\nAnswer:"
    return Example(prompt, f" {answer}", references=(number.strip(),), metrics=("number",))


examples = per_row(example)
