"""Fair comparisons: one adapter, one choice of states, and a searched rate per method."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from client_agent.errors import StudyUnusable
from studies.compare import Comparison
from studies.fair import adapter_label
from studies.study import read_study
from tests.scene.agent_processes import EXAMPLES
from tests.unit.studies.comparisons import BOTH, fair_study, finish_searches, planned_fair_comparison


def test_the_searched_rate_has_the_least_validation_loss(tmp_path: Path) -> None:
    comparison = planned_fair_comparison(tmp_path, methods=["local_lora"])
    assert [cell.label for cell in comparison.missing()] == [
        "local_lora, seed 0, rate 0.001",
        "local_lora, seed 0, rate 0.003",
    ]
    labels = finish_searches(comparison, {0.001: 3, 0.003: 2, 0.01: 1, 0.03: inf})
    assert labels[2:] == ["local_lora, seed 0, rate 0.01", "local_lora, seed 0, rate 0.03"]
    assert [cell.label for cell in comparison.missing()] == [
        "local_lora, seed 1, rate 0.01",
        "local_lora, seed 2, rate 0.01",
    ]
    assert {cell.plan.training.learning_rate for cell in comparison.cells} == {0.01}
    resumed = planned_fair_comparison(tmp_path, methods=["local_lora"])
    assert [cell.label for cell in resumed.missing()] == [cell.label for cell in comparison.missing()]


def test_a_single_named_rate_needs_no_search(tmp_path: Path) -> None:
    comparison = planned_fair_comparison(tmp_path, "fair.rates = [0.1, 0.2]\n")
    assert finish_searches(comparison, {0.1: 1, 0.2: 2}) == [
        "local_lora, seed 0, rate 0.1",
        "local_lora, seed 0, rate 0.2",
        "fedit, seed 0, rate 0.1",
        "fedit, seed 0, rate 0.2",
    ]
    assert {cell.rate for cell in comparison.cells} == {0.1}
    single = planned_fair_comparison(tmp_path, "fair.rates = [0.1]\n")
    assert not single.searches
    assert len(single.cells) == 4


def test_methods_that_draw_clients_are_refused(tmp_path: Path) -> None:
    half = '[method.half]\nlike = "fedit"\nrounds.sample = 0.5\n'
    with pytest.raises(
        StudyUnusable, match=r"half draws clients.* leave rounds\.sample out, or compare without"
    ):
        planned_fair_comparison(tmp_path, half, [*BOTH, "half"])


def test_methods_that_share_their_runs_share_their_searches(tmp_path: Path) -> None:
    more = 'fair.rates = [0.1, 0.2]\n[method.averages]\nlike = "fedit"\nstates = "served"\n'
    comparison = planned_fair_comparison(tmp_path, more, ["local_lora", "fedit", "fedit_local", "averages"])
    assert len(comparison.searches) == 4
    cells = {cell.method: cell.states for cell in comparison.planner._cells.values()}
    assert cells == {"local_lora": "all", "fedit": "all", "fedit_local": "all", "averages": "served"}


def test_methods_have_the_adapter_of_the_rules(tmp_path: Path) -> None:
    methods = ["local_lora", "ca_pfl", "het_lora", "fedmosaic", "fedmosaic_pq"]
    comparison = planned_fair_comparison(
        tmp_path, 'fair.adapter = { rank = 3, roles = ["v", "o"] }\nfair.rates = [0.1]\n', methods
    )
    adapters = {cell.method: cell.plan.adapter for cell in comparison.cells}
    assert {(a.kind, a.rank, a.scale, a.roles) for name, a in adapters.items() if "mosaic" not in name} == {
        ("lora", 3, 2.0, ("v", "o"))
    }
    assert {name: adapter_label(adapter) for name, adapter in adapters.items()} == {
        "local_lora": "LoRA",
        "ca_pfl": "LoRA",
        "het_lora": "LoRA",
        "fedmosaic": "P, Q and LoRA",
        "fedmosaic_pq": "P, Q",
    }
    assert adapters["fedmosaic"].same_architecture_rank == 3
    assert adapters["fedmosaic_pq"].rank == 4  # of P and Q, as the study's plan has it
    assert adapters["fedmosaic_pq"].roles == ("v", "o")


@pytest.mark.parametrize(
    ("more", "methods", "fact"),
    [
        (
            '[method.wide]\nlike = "fedit"\nadapter.rank = 32\n',
            ["local_lora", "fedit", "wide"],
            "methods with LoRA differ in their adapter (local_lora, fedit: rank 16; wide: rank 32)",
        ),
        (
            '[method.last]\nlike = "fedit"\nadapter.layers = 2\nadapter.roles = ["v"]\n',
            ["local_lora", "last"],
            "local_lora: roles q k v o gate up down, layers all; last: roles v, layers 2",
        ),
        (
            "[method.fast]\nlike = 'fedit'\ntraining.learning_rate = 0.1\n",
            ["local_lora", "fast"],
            "method fast sets training.learning_rate, which a fair comparison searches",
        ),
        ("", ["fedit", "ditto"], "the control of a fair comparison, local_lora, is not among its methods"),
        ("fair.search_seed = 2\n", BOTH, "rates are searched with seed 2, which is not to be reported"),
    ],
)
def test_unfair_options_are_refused(tmp_path: Path, more: str, methods: list[str], fact: str) -> None:
    with pytest.raises(StudyUnusable) as refused:
        planned_fair_comparison(tmp_path, more, methods)
    assert fact in str(refused.value)


def test_rates_that_all_diverge_are_refused(tmp_path: Path) -> None:
    comparison = planned_fair_comparison(tmp_path, "fair.rates = [0.1, 0.2]\n", ["local_lora"])
    with pytest.raises(StudyUnusable, match="local_lora diverged at every learning rate that was tried"):
        finish_searches(comparison, {0.1: inf, 0.2: inf})


def test_few_validation_examples_are_refused(tmp_path: Path) -> None:
    few = fair_study(tmp_path).model_copy(update={"validation": 15})
    with pytest.raises(StudyUnusable, match=r"set validation to 16 or more \(now 15\)"):
        Comparison.planned(few, tmp_path / "out", BOTH, None)


@pytest.mark.parametrize(
    ("seeds", "chosen", "expected"), [("[3, 4]", None, 2), ("[0, 5]", None, 6), ("[3, 4]", [4], 2)]
)
def test_the_seed_of_the_search_is_never_reported(
    tmp_path: Path, seeds: str, chosen: list[int] | None, expected: int
) -> None:
    comparison = Comparison.planned(fair_study(tmp_path, seeds=seeds), tmp_path / "out", BOTH, chosen)
    assert {cell.seed for cell in comparison.searches} == {expected}


def test_the_battery_compares_one_adapter(tmp_path: Path) -> None:
    read = read_study(EXAMPLES / "studies" / "battery.toml")
    assert (read.seeds, len(read.methods or ())) == ([1, 2, 3], 18)
    comparison = Comparison.planned(read, tmp_path / "out", None, [1])
    plans = {cell.method: cell.plan for cell in comparison.planner._cells.values()}
    assert {plan.rounds.total for plan in plans.values()} == {12}
    assert {plan.adapter.rank for plan in plans.values() if plan.adapter.kind == "lora"} == {8}
