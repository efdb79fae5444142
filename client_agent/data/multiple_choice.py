"""Questions with options: the options are not in the prompt, and the answer is the text of one of them."""

from __future__ import annotations

from collections.abc import Sequence

from client_agent.data.row import Row
from client_agent.model.examples import Example
from client_agent.settings import MetricName


def question_and_choices(row: Row, question: str) -> Example:
    """Build a question from `choices.text`, `choices.label` and `answerKey`, as ARC and CommonsenseQA have.

    The prompt does not list the options. That is how published scores of base models are measured, and a
    small model does not choose from a list: it scores near chance (benchmarks/README.md, option_accuracy).

    Raises:
        DataInvalid: texts and labels differ in number, or the answer's label is none of them.
    """
    texts, labels = row.texts("choices.text"), row.texts("choices.label")
    if len(texts) != len(labels):
        raise row.invalid("choices", f"has {len(texts)} texts and {len(labels)} labels")
    correct = row.choice("answerKey", labels)
    return question_with_options(f"Question: {question}\nAnswer:", [f" {text}" for text in texts], correct)


def question_with_options(prompt: str, options: Sequence[str], correct: int, *, ending: str = "") -> Example:
    """Return a question that is scored by which of its options the model finds likeliest.

    If `ending` is not empty all options end with it, and the option after which it is likeliest counts.
    """
    unique = tuple(dict.fromkeys(options))
    metrics: tuple[MetricName, ...] = ("option_accuracy",)
    return Example(prompt, options[correct], options=unique, ending=ending, metrics=metrics)
