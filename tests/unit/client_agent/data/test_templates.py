"""Task templates on example rows in the schemas of their data sets on the hub."""

from __future__ import annotations

from typing import Any

import pytest

from client_agent.data.row import Row
from client_agent.data.templates import template, template_names
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example

CHOICES = {"text": ["a kettle", "a ladder", "a lamp"], "label": ["A", "B", "C"]}
ROWS: dict[str, dict[str, Any]] = {
    "arc_easy": {"id": "x1", "question": "What boils water?", "choices": CHOICES, "answerKey": "A"},
    "arc_challenge": {
        "id": "x2",
        "question": "What gives light?",
        "choices": {"text": CHOICES["text"], "label": ["1", "2", "3"]},
        "answerKey": "3",
    },
    "openbookqa": {
        "id": "7-1",
        "question_stem": "To reach a shelf use",
        "choices": CHOICES,
        "answerKey": "B",
    },
    "commonsense_qa": {
        "id": "c1",
        "question": "Where does tea start?",
        "question_concept": "tea",
        "choices": {"label": ["A", "B", "C"], "text": CHOICES["text"]},
        "answerKey": "A",
    },
    "mnli": {"premise": "It rains.", "hypothesis": "The sun shines.", "label": 2, "idx": 5},
    "boolq": {"question": "is tea hot", "answer": True, "passage": "Tea is brewed with hot water."},
    "winogrande": {
        "sentence": "The cup fits on the tray because the _ is small.",
        "option1": "cup",
        "option2": "tray",
        "answer": "1",
    },
    "squad": {
        "id": "s1",
        "title": "Tea",
        "context": "Tea came to the town in 1702.",
        "question": "When did tea come?",
        "answers": {"text": ["1702", "in 1702"], "answer_start": [24, 21]},
    },
    "gsm8k": {
        "question": "Ann has 3 cups and buys 1,000 more. How many has she?",
        "answer": "She has 3+1000=<<3+1000=1003>>1003 cups.\n#### 1003",
    },
    "natural_instructions": {
        "task_name": "task1_tea",
        "id": "task1-a",
        "definition": "Name the drink.",
        "inputs": "leaves in hot water",
        "targets": "tea",
    },
}


def example(name: str, **changes: Any) -> Example:
    (read_example,) = template(name)([Row("rows.jsonl line 1", ROWS[name] | changes)])
    return read_example


def test_templates_all_have_a_test_row() -> None:
    assert set(template_names()) == set(ROWS)


@pytest.mark.parametrize(
    ("name", "completion"),
    [
        ("arc_easy", " a kettle"),
        ("arc_challenge", " a lamp"),
        ("openbookqa", " a ladder"),
        ("commonsense_qa", " a kettle"),
        ("mnli", " contradiction"),
        ("boolq", " yes"),
        ("winogrande", " cup is small."),
    ],
)
def test_completion_is_the_right_option(name: str, completion: str) -> None:
    assert example(name).completion == completion


@pytest.mark.parametrize("name", ["arc_easy", "arc_challenge", "openbookqa", "commonsense_qa"])
def test_question_does_not_list_its_options(name: str) -> None:
    """A small model scores near chance if it must choose from a list, and published scores do without one."""
    row = example(name)
    assert not any(option.strip() in row.prompt for option in row.options)


def test_multiple_choice_question_reads_as_plain_text() -> None:
    row = example("arc_easy")
    assert row.prompt + row.completion == "Question: What boils water?\nAnswer: a kettle"


def test_winogrande_scores_the_rest_of_the_sentence() -> None:
    row = example("winogrande")
    assert (row.options, row.ending) == ((" cup is small.", " tray is small."), " is small.")
    assert example("winogrande", sentence="The cup fits on the _").ending == ""


def test_first_answer_of_squad_is_learnt() -> None:
    assert example("squad").completion == " 1702"


@pytest.mark.parametrize("name", sorted(ROWS))
def test_templates_name_metrics_and_their_inputs(name: str) -> None:
    row = example(name)
    assert row.metrics
    if "option_accuracy" in row.metrics:
        assert row.completion in row.options
        assert len(row.options) == len(set(row.options)) > 1
    else:
        assert row.references
        assert not row.options


def test_squad_answers_are_all_references() -> None:
    assert example("squad").references == ("1702", "in 1702")


def test_gsm8k_is_scored_by_its_number() -> None:
    assert example("gsm8k").references == ("1003",)


def test_gsm8k_is_learnt_without_calculator_marks() -> None:
    assert example("gsm8k").completion == " She has 3+1000=1003 cups.\n#### 1003"


@pytest.mark.parametrize(
    ("name", "changes", "column"),
    [
        ("arc_easy", {"answerKey": "D"}, "answerKey"),
        ("arc_easy", {"choices": {"text": ["a"], "label": ["A", "B"]}}, "choices"),
        ("mnli", {"label": -1}, "label"),
        ("mnli", {"label": True}, "label"),
        ("mnli", {"premise": ""}, "premise"),
        ("boolq", {"answer": "yes"}, "answer"),
        ("winogrande", {"sentence": "No blank."}, "sentence"),
        ("squad", {"answers": {"text": [], "answer_start": []}}, "answers.text"),
        ("gsm8k", {"answer": "It is 4."}, "answer"),
        ("natural_instructions", {"targets": None}, "targets"),
        ("natural_instructions", {"targets": ["tea", " "]}, "targets"),
        ("natural_instructions", {"inputs": 3}, "inputs"),
    ],
)
def test_bad_row_is_refused_with_place_and_column(name: str, changes: dict[str, Any], column: str) -> None:
    with pytest.raises(DataInvalid, match=rf"^rows\.jsonl line 1: column {column} "):
        example(name, **changes)


def test_unknown_template_is_refused_with_known_names() -> None:
    with pytest.raises(DataInvalid, match=r"no task template 'nli'.*mnli"):
        template("nli")
