"""Laws that hold for all strategies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.strategies.base import (
    ClientFacts,
    Cohort,
    Sketch,
    Strategy,
    Weighing,
)
from coordinator.strategies.opening import UnknownStrategy, load, make
from schemas.strategies.registry import strategy_names
from tests.unit.coordinator.strategies.client_facts import FORM, client_facts

DIM = 3
OTHER_FORM = (("P", (3, 3)),)
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "fedmosaic": [
        {},
        {"include_self": True, "centre": False, "min_relevance": None, "sources": "all"},
        {"mix": "replace", "top_k": 3},
        {"mix": "gate", "top_k": 2, "weight_by_examples": True, "temperature": 1e-6},
    ]
}
EVERY = [(name, options) for name in strategy_names() for options in VARIANTS.get(name, [{}])]
every_strategy = pytest.mark.parametrize(("name", "options"), EVERY)


def client(i: int, **facts: Any) -> ClientFacts:
    sketch = Sketch(np.array([1.0, 0.1 * i, 0.2], np.float32))
    return client_facts(i, **{"sketch": sketch} | facts)


modules = st.sets(st.sampled_from(["b0.q", "b0.v", "b1.q", "l0.q"]), min_size=1).flatmap(
    lambda chosen: st.fixed_dictionaries(
        {name: st.sampled_from([FORM, FORM, FORM, OTHER_FORM]) for name in sorted(chosen)}
    )
)
sketches = st.lists(st.floats(-10, 10, width=32), min_size=DIM, max_size=DIM).map(
    lambda numbers: Sketch(np.array(numbers, np.float32))
)


@st.composite
def cohorts(draw: st.DrawFn) -> Cohort:
    clients = []
    for i in range(draw(st.integers(1, 7))):
        age = draw(st.one_of(st.none(), st.integers(0, 4)))
        clients.append(
            client(
                i,
                base_model=draw(st.sampled_from(["s", "l"])),
                alignment_set=draw(st.sampled_from([None, "x", "y"])),
                modules=draw(modules),
                age=age,
                examples=0 if age is None else draw(st.integers(1, 10**9)),
                sketch=draw(st.one_of(sketches, st.none())),
                sketch_model=draw(st.sampled_from(["w", "w", "v"])),
                is_source=age is not None and age <= 3,
            )
        )
    return Cohort(clients, draw(st.sampled_from([1.0, 0.5, 0.01])))


def weigh(name: str, options: dict[str, Any], cohort: Cohort) -> Weighing:
    strategy: Strategy = make(name, options)
    return strategy.weigh(cohort)


@every_strategy
@given(cohort=cohorts(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_weights_obey_the_laws_of_mixtures(
    name: str, options: dict[str, Any], cohort: Cohort, seed: int
) -> None:
    weighing = weigh(name, options, cohort)
    assert_rows_are_finite_and_sum_to_one(cohort, weighing)
    assert_relevance_needs_common_modules(cohort, weighing)
    assert_modules_are_renormalised_over_their_clients(cohort, weighing)
    shuffled = list(cohort.clients)
    np.random.default_rng(seed).shuffle(shuffled)  # type: ignore[arg-type]
    again = weigh(name, options, Cohort(shuffled, cohort.decay))
    np.testing.assert_array_equal(weighing.relevance, again.relevance, "the order of clients matters")
    np.testing.assert_array_equal(weighing.similarity, again.similarity, "the order of clients matters")
    if not options.get("top_k"):  # which breaks ties by name
        count = len(cohort.clients)
        renamed = [replace(facts, client=f"z{count - i:03}") for i, facts in enumerate(cohort.clients)]
        again = weigh(name, options, Cohort(renamed, cohort.decay))
        reversed_rows = again.relevance[::-1, ::-1]
        np.testing.assert_allclose(weighing.relevance, reversed_rows, atol=1e-9, err_msg="names matter")


def assert_rows_are_finite_and_sum_to_one(cohort: Cohort, weighing: Weighing) -> None:
    sums = weighing.relevance.sum(axis=1)
    for facts, total in zip(cohort.clients, sums, strict=True):
        # Only a newcomer, who has nothing of its own to keep, may be left with nothing.
        assert total == pytest.approx(1.0) or (facts.age is None and total == 0.0)
    assert (weighing.relevance >= 0).all()
    assert np.isfinite(weighing.relevance).all()
    assert np.isfinite(weighing.entropy).all()
    assert not np.isinf(weighing.similarity).any()


def assert_relevance_needs_common_modules(cohort: Cohort, weighing: Weighing) -> None:
    shared = cohort.shares_any()
    np.fill_diagonal(shared, True)  # whoever is alone keeps its own
    assert not weighing.relevance[~shared].any()
    for i, facts in enumerate(cohort.clients):
        for j, peer in enumerate(cohort.clients):
            if i != j and weighing.relevance[i, j] > 0:
                assert peer.is_source
                same_set = facts.alignment_set is not None and facts.alignment_set == peer.alignment_set
                assert facts.base_model == peer.base_model or same_set


def assert_modules_are_renormalised_over_their_clients(cohort: Cohort, weighing: Weighing) -> None:
    for module in ("b0.q", "b0.v", "b1.q", "l0.q"):
        weights = weighing.of_module(module)
        shares = cohort.shares(module)
        for i, facts in enumerate(cohort.clients):
            if module not in facts.modules:
                assert not weights[i].any()
                continue
            assert not weights[i][~shares[i]].any()
            raw = np.where(shares[i], weighing.relevance[i], 0.0)
            if raw.sum() > 0:
                assert np.abs(weights[i] - raw / raw.sum()).max() <= 1e-12
            elif facts.age is None:
                kin = [peer.client in weighing.absent for peer in cohort.clients] & shares[i]
                assert list(np.flatnonzero(weights[i])) == list(np.flatnonzero(kin)[:1])  # else zeros
            else:
                assert weights[i, i] == 1.0  # its own value


PRESENT_ONLY = {"flora", "fedex_lora", "ca_pfl"}
"""What these fold or add up is never counted again: an absent client counts for nothing at all."""


@every_strategy
def test_an_absent_client_fades_round_by_round(name: str, options: dict[str, Any]) -> None:
    def weight_of_absent(age: int, *, is_source: bool = True) -> float:
        east, west = (Sketch(np.array([way, way, 0.0], np.float32)) for way in (1.0, -1.0))
        absent = client(2, age=age, is_source=is_source, sketch=east)
        others = [client(0, sketch=east), client(1, sketch=east)]
        strangers = [client(i, sketch=west) for i in (3, 4)]
        return float(weigh(name, options, Cohort([*others, absent, *strangers], 0.5)).relevance[0, 2])

    weights = [weight_of_absent(age) for age in range(4)]
    if name in PRESENT_ONLY:
        assert weights[0] > 0
        assert weights[1:] == [0.0, 0.0, 0.0]
        return
    assert weights == sorted(weights, reverse=True)
    assert len(set(weights)) == 4
    # Among equals, age halves the odds.
    odds = [w / weight_of_absent(0) for w in weights]
    assert odds[1] > 0.5
    assert weight_of_absent(4, is_source=False) == 0.0


@every_strategy
def test_a_single_client_keeps_its_update(name: str, options: dict[str, Any]) -> None:
    weighing = weigh(name, options, Cohort([client(0)], 0.5))
    assert weighing.relevance.tolist() == [[1.0]]
    assert weighing.of_module("b0.q").tolist() == [[1.0]]
    assert weighing.entropy.tolist() == [0.0]


@every_strategy
def test_clients_without_common_modules_keep_their_update(name: str, options: dict[str, Any]) -> None:
    crowd = [client(i) for i in range(3)]
    hermit = client(9, base_model="other")
    weighing = weigh(name, options, Cohort([*crowd, hermit], 0.5))
    assert weighing.relevance[3].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert not weighing.relevance[:3, 3].any()


@every_strategy
def test_a_stale_client_without_sources_keeps_its_update(name: str, options: dict[str, Any]) -> None:
    weighing = weigh(name, options, Cohort([client(0, age=9, is_source=False)], 0.5))
    assert weighing.relevance.tolist() == [[1.0]]


@every_strategy
def test_a_newcomer_without_peers_gets_zeros(name: str, options: dict[str, Any]) -> None:
    weighing = weigh(name, options, Cohort([client(0, age=None, examples=0, is_source=False)], 0.5))
    assert weighing.relevance.tolist() == [[0.0]]
    assert weighing.of_module("b0.q").tolist() == [[0.0]]


@every_strategy
def test_newcomers_without_a_sketch_get_a_mixture(name: str, options: dict[str, Any]) -> None:
    newcomer = client(5, age=None, examples=0, is_source=False, sketch=None)
    weighing = weigh(name, options, Cohort([client(0), client(1), newcomer], 0.5))
    np.testing.assert_allclose(weighing.relevance[2], [0.5, 0.5, 0.0])


@every_strategy
def test_modules_are_mixed_among_clients_that_have_them(name: str, options: dict[str, Any]) -> None:
    east, west = (Sketch(np.array([way, way, 0.0], np.float32)) for way in (1.0, -1.0))
    both = {"b0.q": FORM, "b0.v": FORM}
    opposite = [client(i, sketch=west) for i in (7, 8)]
    clients = [
        client(0, sketch=east, modules=both),
        client(1, sketch=east),
        client(2, sketch=east, modules=both),
        *opposite,
    ]
    weights = weigh(name, options, Cohort(clients, 0.5)).of_module("b0.v")
    assert weights[0, 1] == 0.0
    assert weights[0].sum() == pytest.approx(1.0)
    assert weights[0, 2] > 0.4
    assert not weights[1].any()


@every_strategy
def test_lora_is_mixed_only_inside_a_base_model(name: str, options: dict[str, Any]) -> None:
    sketches = {"s": np.array([1.0, 1.0, 0.0], np.float32), "l": np.array([1.0, 1.0, 0.05], np.float32)}
    facts = {
        "alignment_set": "x",
        "modules": {"b0.q": FORM, "l0.q": FORM},
        "sketch": Sketch(sketches["s"]),
    }

    def signed_client(i: int, sign: float) -> ClientFacts:
        model = "sl"[i % 2]
        return client(i, base_model=model, **(facts | {"sketch": Sketch(sign * sketches[model])}))

    alike = [signed_client(i, 1.0) for i in range(4)]
    opposite = [signed_client(i, -1.0) for i in (6, 7)]
    newcomer = client(8, base_model="m", **(facts | {"age": None, "is_source": False, "examples": 0}))
    weighing = weigh(name, options, Cohort([*alike, *opposite, newcomer], 0.5))
    own = weighing.of_module("l0.q")
    assert own[0, 2] > 0.3
    assert own[1, 3] > 0.3
    assert not own[[0, 2, 4]][:, [1, 3, 5]].any()
    assert not own[[1, 3, 5]][:, [0, 2, 4]].any()
    assert not own[6].any()  # nobody of its base model: its LoRA starts from zeros, its P and Q do not
    assert weighing.of_module("b0.q")[6, :4].sum() > 0.5


@pytest.mark.parametrize("name", strategy_names())
def test_options_have_defaults_and_forbid_unknown_fields(name: str) -> None:
    options = load(name).options
    assert options.model_config.get("extra") == "forbid"
    assert options() == options.model_validate(options().model_dump(mode="json"))


def test_an_unknown_strategy_error_lists_the_strategies() -> None:
    with pytest.raises(UnknownStrategy, match="fedavg, fedex_lora, fedmosaic"):
        load("base")
    with pytest.raises(UnknownStrategy, match="'no'"):
        make("no", {})


def test_duplicate_clients_are_an_error() -> None:
    with pytest.raises(ValueError, match="twice"):
        Cohort([client(0), client(0)], 0.5)
