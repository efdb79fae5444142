"""A study with different templates of its silos."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from client_agent.model.loading import load_base_model
from client_agent.training.evaluate import evaluate
from studies.methods import methods_of
from studies.partition import draw_examples
from studies.results import cells_of
from studies.study import Study, read_study
from tests.scene.real_rows import write_folders

KINDS = ["abbreviation", "entity", "description", "person", "place", "number"]
SILOS = """
data = "data"
models = "models"
tests = 6
validation = 2
seeds = [0]
methods = ["local_lora"]
plan.training = { steps = 2, learning_rate = 0.01 }

[defaults]
model = "smollm2"
examples = 4

[[silo]]
name = "question"
copies = 2
group = "question type"
train = "trec"
[silo.template]
prompt = "Question: {text}\\nIt asks for a"
answer = "{coarse_label}"
options = KINDS

[[silo]]
name = "pair"
train = "sick"
[silo.template]
prompt = "{sentence_A}. Then: {sentence_B}.\\nThat is"
answer = "{label}"
options = ["entailment", "neutral", "contradiction"]

[[silo]]
name = "news"
train = "ag_news"
[silo.template]
prompt = "{text}\\nTopic:"
answer = "{label}"
options = ["world", "sports", "business", "science"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("templates")
    write_folders(place)
    return place


def read(folder: Path, kinds: list[str] = KINDS) -> Study:
    file = folder / "study.toml"
    file.write_text(SILOS.replace("KINDS", json.dumps(kinds)))
    return read_study(file)


def test_silos_are_scored_by_their_templates_options(folder: Path) -> None:
    study = read(folder)
    data = draw_examples(study, 0)
    assert {len(drawn.test) for drawn in data.values()} == {6}
    assert not {e.key for e in data["question-1"].train} & {e.key for e in data["question-2"].train}
    base = load_base_model(study.silo[0].model, device=torch.device("cpu"), dtype=torch.float32)
    for name, options in (("question-1", 6), ("pair", 3), ("news", 4)):
        tests = data[name].test
        assert {len(example.options) for example in tests} == {options}
        assert evaluate(base, tests, max_length=64).scores()["option_accuracy"].count == 6


def test_the_digest_covers_the_templates_of_silos(folder: Path) -> None:
    def digest(kinds: list[str]) -> str:
        study = read(folder, kinds)
        (cell,) = cells_of(study, methods_of(study), [0])
        return cell.digest

    assert digest(KINDS) == digest(KINDS)
    more = digest([*KINDS, "time"])  # the same texts are learnt, and scores are others
    assert more != digest(KINDS)
    assert digest([*KINDS[:5], "count"]) not in (more, digest(KINDS))
