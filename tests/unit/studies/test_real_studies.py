"""The studies of real models, on generated rows and tiny models: plans and examples of all runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_agent.errors import StudyUnusable
from coordinator.strategies.opening import make
from examples.studies import make_distil_questions
from examples.studies.make_anchors import FILE, anchors
from studies.methods import control_of, methods_of
from studies.pack_cache import read_anchors
from studies.partition import draw_examples
from studies.partition_record import describe_partition
from studies.results import Cell, cells_of
from studies.study import Study, read_study
from tests.scene.agent_processes import EXAMPLES
from tests.scene.real_rows import REAL, write_folders


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_folders(tmp_path_factory.mktemp("real"))


def opened(name: str, folders: tuple[Path, Path]) -> Study:
    """Read a study with as few examples as the rows of the tests allow."""
    data, models = folders
    read = read_study(EXAMPLES / "studies" / f"{name}.toml", data=data, models=models)
    return read.with_examples(4).model_copy(update={"tests": 4, "validation": 2})


def _rate(study: Study) -> object:
    training = study.plan.get("training", {})
    return training.get("learning_rate", "auto") if isinstance(training, dict) else "auto"


@pytest.mark.parametrize("name", REAL)
def test_a_studys_runs_have_valid_plans(folders: tuple[Path, Path], name: str) -> None:
    read = opened(name, folders)
    methods = methods_of(read)
    cells = list(cells_of(read, methods, [0]))
    assert [cell.method for cell in cells] == read.methods
    plans = {cell.method: cell.plan for cell in cells}
    for cell in cells:
        plan = cell.plan
        assert plan.training.learning_rate == _rate(read)
        assert make(plan.strategy.name, plan.strategy.options).unfit(plan) is None
        control = control_of(read, cell.method, plan)
        assert control is None or plans[control].adapter == plan.adapter
        assert (plan.alignment is None) == (plan.adapter.kind == "lora")


@pytest.mark.parametrize("name", REAL)
def test_silos_have_the_examples_of_their_tasks(folders: tuple[Path, Path], name: str) -> None:
    read = opened(name, folders)
    data = draw_examples(read, 0)
    for silo in read.silo:
        assert len(data[silo.name].train) == 4
        assert len(data[silo.name].validation) == 2
        assert len(data[silo.name].test) == 4
    record = describe_partition(read, 0)
    assert {sum(silo.train.values()) for silo in record.silos.values()} == {4}


def test_methods_of_one_study_have_the_same_adapter(folders: tuple[Path, Path]) -> None:
    plans = {cell.method: cell.plan for cell in _cells("real_same_base", folders)}
    lora = plans["local_lora"].adapter
    assert (lora.kind, lora.rank) == ("lora", 16)
    for name in ("fedit", "fedsa_lora", "ffa_lora", "fedmosaic_lora"):
        assert plans[name].adapter == lora
    assert plans["local_both"].adapter == plans["fedmosaic"].adapter
    assert plans["fedit"].strategy.name == "fedavg"
    assert plans["fedmosaic_lora"].strategy.name == "fedmosaic"


def test_the_shipped_anchors_are_those_of_the_generator() -> None:
    assert read_anchors(FILE) == anchors()
    texts = {(anchor.prompt, anchor.answer) for anchor in anchors().anchors}
    assert len(texts) > 0.9 * len(anchors().anchors)


def test_the_shipped_questions_are_those_of_the_generator() -> None:
    shipped = json.loads(make_distil_questions.FILE.read_text())
    assert shipped == {"anchors": make_distil_questions.texts()}


def _cells(name: str, folders: tuple[Path, Path]) -> list[Cell]:
    read = opened(name, folders)
    return list(cells_of(read, methods_of(read), [0]))


TWINS = ("local", "local_both", "fedmosaic_pq", "fedmosaic")


def test_plans_without_q_differ_in_bias_only(folders: tuple[Path, Path]) -> None:
    read = opened("real_same_base", folders)
    names = [name + end for name in TWINS for end in ("", "_no_q")]
    plans = {cell.method: cell.plan for cell in cells_of(read, methods_of(read, names), [0])}
    for name in TWINS:
        without = plans[f"{name}_no_q"]
        assert not without.adapter.bias
        assert without.model_copy(update={"name": "", "adapter": None}) == plans[name].model_copy(
            update={"name": "", "adapter": None}
        )
        assert without.adapter.model_copy(update={"bias": True}) == plans[name].adapter
    assert control_of(read, "fedmosaic_no_q", plans["fedmosaic_no_q"]) == "local_both_no_q"
    assert control_of(read, "fedmosaic_pq_no_q", plans["fedmosaic_pq_no_q"]) == "local_no_q"


def test_silos_of_one_source_have_their_own_answers(folders: tuple[Path, Path]) -> None:
    read = opened("codes", folders)
    data = draw_examples(read, 0)
    topics = ["world", "sports", "business", "science"]
    for silo in read.silo:
        for example in (*data[silo.name].train, *data[silo.name].validation, *data[silo.name].test):
            topic = topics[int(example.prompt.split()[2]) % 4]  # ship n has the label n % 4
            assert example.completion.strip() == silo.answers[topic]
            assert {option.strip() for option in example.options} == set(silo.answers.values())
    prompts = [example.prompt for silo in read.silo for example in data[silo.name].train]
    assert len(set(prompts)) == len(prompts)


def test_a_missing_answer_of_a_silo_is_named(folders: tuple[Path, Path]) -> None:
    read = opened("codes", folders)
    silos = [silo.model_copy(update={"answers": {"world": "red"}}) for silo in read.silo]
    with pytest.raises(StudyUnusable, match=r"answers lack 'sports'|answers lack 'business'|'science'"):
        draw_examples(read.model_copy(update={"silo": silos}), 0)
