"""Studies: strict validation, and the plan of each method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_agent.errors import StudyUnusable
from coordinator.strategies.opening import make
from schemas.messages.federations import ALL_ROLES, FederationPlan
from schemas.messages.recommendations import LORA_STRATEGIES
from studies.methods import (
    BUILT_IN,
    ON_REQUEST,
    control_of,
    methods_of,
    plan_of,
    require_equal_training,
)
from studies.results import Cell, cells_of
from studies.study import read_study
from tests.scene.agent_processes import EXAMPLES, MODELS
from tests.scene.real_rows import read_studies
from tests.scene.studies import silo_table, study, write_study

PIVOT = "tiny-s-000000000000"


def plans(folder: Path, more: str = "", seed: int = 0) -> dict[str, FederationPlan]:
    read = study(folder, more=more)
    return {method.name: plan_of(read, method, seed, PIVOT) for method in methods_of(read)}


def test_paths_are_relative_to_the_study_file(tmp_path: Path) -> None:
    file = write_study(tmp_path, silo_table("aster"), silo_table("birch"))
    (tmp_path / "model").mkdir()
    text = file.read_text().replace(json.dumps(str(MODELS["S"])), '"model"', 1)
    file.write_text(text.replace(json.dumps(str(MODELS["S"])), '"org/model"', 1))
    read = read_study(file)
    assert read.pivot_model == str(tmp_path / "model")
    assert read.silo[0].model == "org/model"
    assert read.silo[0].train == str(tmp_path / "copy" / "train.jsonl")
    assert read.anchors == EXAMPLES / "anchors.json"


@pytest.mark.parametrize(
    ("silos", "more", "field"),
    [
        ((silo_table("a"), silo_table("a")), "", "silo: two silos are called a"),
        ((silo_table("a"), silo_table("b", joins_after=1)), "", "silo: at least two silos must be founders"),
        ((silo_table("a"), silo_table("b", examples=0)), "", "silo.1.examples"),
        ((silo_table("a"), silo_table("b", colour="red")), "", "silo.1.colour"),
        ((), "seeds_ = 1\n", "seeds_"),
        ((), "methods = []\n", "methods"),
        ((), 'methods = ["local", "local"]\n', "a method is listed twice"),
        ((), "[method.Bad]\n", "method.Bad"),
    ],
)
def test_an_invalid_study_names_the_wrong_field(
    tmp_path: Path, silos: tuple[str, ...], more: str, field: str
) -> None:
    with pytest.raises(StudyUnusable, match=field):
        study(tmp_path, *silos, more=more)


def test_a_missing_or_malformed_study_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyUnusable, match="cannot be read"):
        read_study(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("silo = [")
    with pytest.raises(StudyUnusable, match="is not TOML"):
        read_study(tmp_path / "bad.toml")


def test_example_studies_have_valid_plans(tmp_path: Path) -> None:
    studies = read_studies(tmp_path)
    assert len(studies) >= 7
    for read in studies:
        plan_by_method = {method.name: plan_of(read, method, 0, PIVOT) for method in methods_of(read)}
        require_equal_training(plan_by_method)
        methods = methods_of(read, [*BUILT_IN, *read.method])
        all_plans = {method.name: plan_of(read, method, 0, PIVOT) for method in methods}
        for name in read.method:
            control = control_of(read, name, all_plans[name])
            if control is not None:
                own_plan, control_plan = all_plans[name], all_plans[control]
                rates = own_plan.training.learning_rate, control_plan.training.learning_rate
                assert (own_plan.adapter, rates[0]) == (control_plan.adapter, rates[1]), name
        for name, plan in plan_by_method.items():
            assert plan.rounds.min_clients == len(read.founders)
            shipped = BUILT_IN[name].plan.get("strategy", {}) if name in BUILT_IN else None
            assert shipped is None or plan.strategy.options == shipped.get("options", {}), name


def test_methods_have_the_studys_steps_and_runs_seed(tmp_path: Path) -> None:
    plan_by_method = plans(tmp_path, seed=7)
    alone, together = ["local", "local_lora", "local_both"], ["fedavg", "fedmosaic_random_frames"]
    assert list(plan_by_method) == [*alone, *together, "fedmosaic_pq", "fedmosaic", "fedmosaic_lora"]
    assert {(p.training.steps, p.training.seed, p.rounds.total) for p in plan_by_method.values()} == {
        (2, 7, 2)
    }


def test_lora_has_all_roles_without_alignment(tmp_path: Path) -> None:
    lora = plans(tmp_path)["local_lora"]
    assert (lora.adapter.kind, lora.adapter.rank, lora.adapter.roles) == ("lora", 16, ALL_ROLES)
    assert lora.alignment is None


LORA_NAMES = {
    "fedit": "fedavg",
    "fedit_local": "fedavg",
    "fedmosaic_lora": "fedmosaic",
    "fedmosaic_lora_sketches": "fedmosaic",
}


def test_baselines_share_the_adapter_of_local_lora(tmp_path: Path) -> None:
    read = study(tmp_path)
    local = plans(tmp_path)["local_lora"]
    for method in methods_of(read, [*LORA_STRATEGIES, *LORA_NAMES]):
        plan = plan_of(read, method, 0, PIVOT)
        assert (plan.adapter, plan.training) == (local.adapter, local.training)
        assert plan.strategy.name == LORA_NAMES.get(method.name, method.name)
        assert control_of(read, method.name, plan) == "local_lora"


def test_controls_of_fedmosaic_have_its_adapters(tmp_path: Path) -> None:
    plan_by_method = plans(tmp_path)
    adapter = plan_by_method["fedmosaic"].adapter
    assert adapter.same_architecture_rank == 8
    for method in ("local_both", "fedavg", "fedmosaic_random_frames"):
        assert plan_by_method[method].adapter == adapter
    for method in ("local", "fedmosaic_pq"):
        assert plan_by_method[method].adapter == adapter.model_copy(update={"same_architecture_rank": 0})


def test_ca_pfl_is_optional_with_its_own_plan(tmp_path: Path) -> None:
    assert not plans(tmp_path).keys() & set(ON_REQUEST)
    read = study(tmp_path)
    (method,) = methods_of(read, ["ca_pfl"])
    plan = plan_of(read, method, 0, PIVOT)
    assert make(plan.strategy.name, plan.strategy.options).unfit(plan) is None
    assert (plan.adapter.kind, plan.adapter.rank, plan.adapter.scale) == ("lora", 8, 16.0)


def test_random_frames_differ_from_fedmosaic_in_frames_only(tmp_path: Path) -> None:
    plan_by_method = plans(tmp_path, "[method.fedmosaic]\nstrategy.options.centre = false\n")
    aligned, control = plan_by_method["fedmosaic"], plan_by_method["fedmosaic_random_frames"]
    assert aligned.strategy.options == control.strategy.options == {"centre": False}
    assert aligned.alignment is not None
    assert control.alignment is not None
    assert (aligned.alignment.frames, control.alignment.frames) == ("pca-tok", "random")
    assert aligned.alignment.pivot == PIVOT


def test_a_variant_changes_a_method_by_dotted_keys(tmp_path: Path) -> None:
    more = """
[method.gated]
like = "fedmosaic"
"strategy.options.mix" = "gate"
training.steps = 5
[method.gated_alone]
like = "gated"
alone = true
"""
    read = study(tmp_path, more=more)
    gated, alone = methods_of(read, ["gated", "gated_alone"])
    assert (gated.alone, alone.alone) == (False, True)
    for method in (gated, alone):
        plan = plan_of(read, method, 0, PIVOT)
        assert plan.strategy.options == {"mix": "gate"}
        assert plan.training.steps == 5


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('[method.a]\nlike = "b"\n', "unknown method b"),
        ('[method.a]\nlike = "c"\n[method.c]\nlike = "a"\n', "refers to itself by `like`"),
        ('[method.a]\nlike = "fedavg"\ntraining.step = 3\n', "training.step: there is no such field"),
    ],
)
def test_an_invalid_method_is_refused(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(StudyUnusable, match=message):
        plans(tmp_path, more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("plan.rounds.min_clients = 2\n", "must not set rounds.min_clients: the number of founders"),
        ("plan.training.seed = 3\n", "must not set training.seed: the run's seed determines it; set seeds"),
        ("[method.fedavg]\ntraining.seed = 3\n", "plan of method fedavg must not set training.seed"),
        ('plan.name = "mine"\n', "must not set name: method and seed determine it"),
        ('plan.alignment.pivot = "x"\n', "must not set alignment.pivot: the study's pivot_model"),
    ],
)
def test_plan_fields_set_by_the_study_are_refused(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(StudyUnusable, match=message):
        plans(tmp_path, more)


@pytest.mark.parametrize(
    ("changes", "equal"),
    [
        ("training.steps = 3\n", False),
        ("rounds.total = 3\n", False),
        ("training.batch_size = 4\n", False),
        ("training.accumulation = 2\n", False),
        ("training.steps = 1\nrounds.total = 4\n", True),
        ("training.batch_size = 4\ntraining.accumulation = 2\n", True),
    ],
)
def test_methods_with_unequal_training_are_refused(tmp_path: Path, changes: str, equal: bool) -> None:
    read = study(tmp_path, more=f'[method.longer]\nlike = "fedavg"\n{changes}')

    def cells(*names: str) -> list[Cell]:
        return list(cells_of(read, methods_of(read, list(names)), [0]))

    assert len(cells("longer")) == 1
    if equal:
        assert len(cells("local", "longer")) == 2
    else:
        with pytest.raises(StudyUnusable, match=r"train unequal amounts \(local: 4 steps on"):
            cells("local", "longer")


def test_joining_after_the_last_round_is_refused(tmp_path: Path) -> None:
    file = write_study(tmp_path, silo_table("aster"), silo_table("birch"), silo_table("late", joins_after=2))
    read = read_study(file)
    with pytest.raises(StudyUnusable, match="late joins after round 2 of 2"):
        plan_of(read, methods_of(read)[0], 0, PIVOT)


def test_silos_of_several_models_need_a_pivot(tmp_path: Path) -> None:
    file = write_study(tmp_path, silo_table("aster"), silo_table("birch", model="L"))
    text = file.read_text()
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("pivot_model")))
    with pytest.raises(StudyUnusable, match="pivot_model"):
        read_study(file)


def test_a_methods_control_has_its_adapter_trained_alone(tmp_path: Path) -> None:
    adapter_fields = (
        '[method.mine]\nlike = "fedmosaic"\ncontrol = "local"\n[method.child]\nlike = "mine"\n'
        '[method.wrong]\nlike = "fedmosaic"\ncontrol = "fedavg"\n'
    )
    read = study(tmp_path, more=adapter_fields)
    expected = {"fedmosaic": "local_both", "fedmosaic_pq": "local", "mine": "local", "child": "local"}
    for method in methods_of(read, [*expected]):
        assert control_of(read, method.name, plan_of(read, method, 0, PIVOT)) == expected[method.name]
    (alone,) = methods_of(read, ["local_lora"])
    assert control_of(read, alone.name, plan_of(read, alone, 0, PIVOT)) is None
    with pytest.raises(StudyUnusable, match="the control of method wrong, fedavg, is federated"):
        list(cells_of(read, methods_of(read, ["wrong"]), [0]))
