"""Custom templates on example rows in the schemas of trec, sick and ag_news."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client_agent.data.load import RowOptions, load_examples
from client_agent.data.own_template import by_template
from client_agent.data.row import Row
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example
from client_agent.row_template import RowTemplate

KINDS = ["abbreviation", "entity", "description", "person", "place", "number"]
TREC = {"text": "Who brewed the first tea?", "coarse_label": 3}
SICK = {"id": "7", "sentence_A": "A cat sits", "sentence_B": "No cat sits ", "label": 2}
NEWS = {"text": "The harbour town opens its new market", "label": 0}


def template(prompt: str = "{text}", answer: str = "{coarse_label}", options: Any = KINDS) -> RowTemplate:
    return RowTemplate.model_validate({"prompt": prompt, "answer": answer, "options": options})


def example(row_template: RowTemplate, row: dict[str, Any]) -> Example:
    (read,) = by_template(row_template)([Row("rows.jsonl line 3", row)])
    return read


@pytest.mark.parametrize(
    ("row_template", "row", "text"),
    [
        (
            template("Question: {text}\nIt asks for a"),
            TREC,
            "Question: Who brewed the first tea?\nIt asks for a person",
        ),
        (
            template(
                "{sentence_A}. Then: {sentence_B}.\nThat is",
                "{label}",
                ["entailment", "neutral", "contradiction"],
            ),
            SICK,
            "A cat sits. Then: No cat sits.\nThat is contradiction",
        ),
        (
            template("{text}\nTopic: ", "{label}", ["world", "sports", "business", "science"]),
            NEWS,
            "The harbour town opens its new market\nTopic: world",
        ),
    ],
)
def test_question_with_options_reads_as_plain_text(
    row_template: RowTemplate, row: dict[str, Any], text: str
) -> None:
    read = example(row_template, row)
    assert read.prompt + read.completion == text
    assert not read.prompt.endswith(" ")
    assert read.metrics == ("option_accuracy",)
    assert read.options == tuple(f" {option}" for option in row_template.texts)


BY_VALUE = {"true": "yes", "false": "no"}


@pytest.mark.parametrize(
    ("options", "value", "answer"),
    [
        (KINDS, 0, "abbreviation"),
        (KINDS, "5", "number"),
        (KINDS, 2.0, "description"),
        (KINDS, " Place ", "place"),
        (["0", "1"], 1, "1"),
        (["true", "false"], True, "true"),
        (BY_VALUE, True, "yes"),
        (BY_VALUE, "False", "no"),
        ({"1": "bad", "2": "bad", "3": "good"}, 2, "bad"),
    ],
)
def test_value_is_looked_up_in_the_options(options: Any, value: object, answer: str) -> None:
    assert example(template(options=options), TREC | {"coarse_label": value}).completion == f" {answer}"


@pytest.mark.parametrize(
    ("prompt", "answer", "row", "text", "references"),
    [
        ("{q}\n", "{a}", {"q": "2 + 2?", "a": 4}, "2 + 2?\n4", ("4",)),
        ("{{{q}}} {ok}:", "<{a}>", {"q": "x", "a": "b", "ok": True}, "{x} true: <b>", ("<b>",)),
        ("问：{q}\n答：", "{a}", {"q": "茶", "a": "热"}, "问：茶\n答：热", ("热",)),
        ("{q.a}:", "{a.text}", {"q": {"a": "w"}, "a": {"text": ["b", "c"]}}, "w: b", ("b", "c")),
        ("{a.b}:", "{c: d}", {"a.b": "{c: d}", "c: d": "e"}, "{c: d}: e", ("e",)),
    ],
)
def test_answer_without_options_is_free_text(
    prompt: str, answer: str, row: dict[str, Any], text: str, references: tuple[str, ...]
) -> None:
    read = example(template(prompt, answer, None), row)
    assert read.prompt + read.completion == text
    assert (read.references, read.options, read.metrics) == (references, (), ("exact_match",))


def test_digest_of_an_example_follows_the_template() -> None:
    same, changed = template("{text}?"), template("{text}!")
    assert example(same, TREC) == example(template("{text}?"), TREC)
    assert example(same, TREC).key != example(changed, TREC).key
    more = example(template("{text}?", options=[*KINDS, "time"]), TREC)
    assert more.key == example(same, TREC).key  # it is learnt in the same way, and stays in its split
    assert more.scored_by != example(same, TREC).scored_by


@pytest.mark.parametrize(
    ("row_template", "row", "error"),
    [
        (
            template("{txt}"),
            TREC,
            r"column txt is missing, and text is similar; the columns are: text, coarse",
        ),
        (template("{TEXT}"), TREC, "column TEXT is missing, and text is similar"),
        (template("{text.__class__}"), TREC, "column text.__class__ is missing"),
        (template("{text}"), TREC | {"text": None}, "column text is null"),
        (template("{text}"), TREC | {"text": " "}, "column text is empty; set skip_bad_rows"),
        (template("{text}"), TREC | {"text": ["a"]}, "column text is not a text but .*in the data"),
        (template("{text}"), TREC | {"text": {"a": 1}}, "column text is not a text but .*key of it by a dot"),
        (template(), TREC | {"coarse_label": 6}, r"is 6, neither an option \(abb.* nor an index from 0 to 5"),
        (template(), TREC | {"coarse_label": -1}, "is -1, neither an option"),
        (template(), TREC | {"coarse_label": 0.5}, "is 0.5, neither an option"),
        (
            template(),
            TREC | {"coarse_label": True},
            r"is true, neither .* options = { \"true\" = \"number\" }",
        ),
        (
            template(),
            TREC | {"coarse_label": "LOC"},
            r"is \"LOC\", neither .* options = { \"LOC\" = \"number\" }",
        ),
        (template(), {"text": "a"}, "column coarse_label is missing"),
        (template(options=BY_VALUE), TREC, "is 3, and options names the values true, false; add it"),
    ],
)
def test_unfit_row_is_refused_with_its_place(
    row_template: RowTemplate, row: dict[str, Any], error: str
) -> None:
    with pytest.raises(DataInvalid, match=rf"^rows\.jsonl line 3: .*{error}"):
        example(row_template, row)


def test_unused_columns_are_named_and_bad_rows_skipped(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [TREC | {"label": 1, "weight": 2}, TREC | {"coarse_label": 9}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_examples(str(file), RowOptions(template=template(), skip_bad_rows=True))
    assert (loaded.format, loaded.rows, len(loaded.examples)) == ("template", 2, 1)
    assert loaded.unused.sentences() == ["not used: label, weight"]
    assert "line 2: column coarse_label is 9" in loaded.skipped[0]
