"""Custom row templates: valid fields, and errors of silo.toml and of studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_agent.errors import SettingsUnusable, StudyUnusable
from client_agent.row_template import RowTemplate
from client_agent.settings import AgentSettings
from studies.study import read_study

SILO = 'url = "http://127.0.0.1:1"\nmodel = "m"\ntrain = "t.jsonl"\n'
STUDY = 'seeds = [0]\n[[silo]]\nname = "ash"\ncopies = 2\nexamples = 4\n' + SILO.split("\n", 1)[1]
OWN_TEMPLATE = 'template = { prompt = "{text}", answer = "{label}" }\n'


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ('template = "mnli"', "template: is a table .* belongs to format"),
        ('template = { prompt = "{a}" }', "template.answer: missing"),
        (
            'template = { prompt = "{a", answer = "{b}" }',
            r"template.prompt: has a lone { in '{a'; write {col",
        ),
        ('template = { prompt = "a}", answer = "{b}" }', "template.prompt: has a lone } in 'a}'"),
        ('template = { prompt = "{a}", answer = "{ }" }', "template.answer: has an empty { }"),
        ('template = { prompt = "What?", answer = "{b}" }', "template.prompt: is the same for every row"),
        ('template = { prompt = "{a}", answer = "{{b}}" }', "template.answer: is the same for every row"),
        ('template = { prompt = "{a}", answer = "{b}", metrics = ["f1"] }', "beside the template"),
        (
            'template = { prompt = "{a}", answer = "{b}", option = ["x", "y"] }',
            "template.option: there is no such (option|field); did you mean options",
        ),
        (
            OWN_TEMPLATE + 'format = "mnli"',
            "template: says what a row is, and so does format = 'mnli'; leave one out",
        ),
        (
            OWN_TEMPLATE + 'columns = { prompt = "q" }',
            "template: names the columns of the data in its braces",
        ),
    ],
)
@pytest.mark.parametrize("is_study", [False, True])
def test_template_that_is_unclear_is_refused(
    tmp_path: Path, written: str, error: str, *, is_study: bool
) -> None:
    file = tmp_path / "file.toml"
    file.write_text((STUDY if is_study else SILO) + written)
    refused, read = (StudyUnusable, read_study) if is_study else (SettingsUnusable, AgentSettings.from_toml)
    with pytest.raises(refused, match=("silo.0." if is_study and "template." in error[:9] else "") + error):
        read(file)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"options": []}, "needs two different answers or more"),
        ({"options": ["yes"]}, "needs two different answers or more"),
        ({"options": {"1": "yes", "2": "yes"}}, "needs two different answers or more"),
        ({"options": ["yes", " "]}, "has an empty answer"),
        ({"options": ["yes", "no", "Yes "]}, "has 'Yes ?' twice"),
        ({"options": {"a": "yes", "A": "no"}}, "has 'A' twice"),
        ({"options": ["1", "2", "3"]}, "numbers that may be indices or answers; write which"),
        ({"answer": "It is {label}"}, "must be one column in braces and nothing else"),
        ({"answer": "{label}{more}"}, "must be one column in braces and nothing else"),
        ({"prompt": "{text} {label}"}, r"shows the answer: it has {label} too"),
    ],
)
def test_options_without_effect_are_refused(changes: dict[str, Any], error: str) -> None:
    whole = {"prompt": "{text}", "answer": "{label}", "options": ["yes", "no"]}
    RowTemplate.model_validate(whole)
    with pytest.raises(ValueError, match=error):
        RowTemplate.model_validate(whole | changes)


@pytest.mark.parametrize("options", ['["yes", "no"]', '{ true = "yes", false = "no" }'])
def test_silos_and_studies_read_the_same_template(tmp_path: Path, options: str) -> None:
    silo, study = tmp_path / "silo.toml", tmp_path / "study.toml"
    dotted = f'template.prompt = "{{text}}"\ntemplate.answer = "{{label}}"\ntemplate.options = {options}\n'
    silo.write_text(SILO + dotted)
    study.write_text(STUDY + f"[silo.template]\n{dotted.replace('template.', '')}")
    template = AgentSettings.from_toml(silo).template
    assert template is not None
    assert template.texts == ("yes", "no")
    read = read_study(study)
    assert {table.template for table in read.silo} == {template}
    assert type(read).model_validate_json(read.model_dump_json()) == read  # as a worker receives it
