"""WinoGrande (Sakaguchi et al. 2020): two ways to fill a blank.

The options are compared by the likelihood of the rest of the sentence after them (Trinh and Le 2018): the
likelihood of an option itself depends on how frequent its words are.
"""

from __future__ import annotations

from client_agent.data.formats import per_row
from client_agent.data.multiple_choice import question_with_options
from client_agent.data.row import Row
from client_agent.model.examples import Example

_BLANK = "_"


def example(row: Row) -> Example:
    """Columns `sentence` with one blank `_`, `option1`, `option2` and `answer` ("1" or "2")."""
    sentence = row.text("sentence")
    if sentence.count(_BLANK) != 1:
        raise row.invalid("sentence", f"has {sentence.count(_BLANK)} blanks instead of one")
    before, _, after = sentence.partition(_BLANK)
    # A space is part of the token after it, so that it begins the option and does not end the prompt.
    space = " " if before.endswith(" ") else ""
    before = before.removesuffix(" ")
    options = tuple(space + row.text(column) + after for column in ("option1", "option2"))
    correct = row.choice("answer", ("1", "2"))
    prompt = f"Complete the sentence.\n{before}"
    return question_with_options(prompt, options, correct, ending=after if after.strip() else "")


examples = per_row(example)
