"""FedMosaic: weights by sketches and changes, own states, newcomers and options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from coordinator.aggregation.guard import guard_weights
from coordinator.strategies.base import ClientFacts, Cohort, Floats, Sketch, Weighing
from coordinator.strategies.capabilities import Caps
from coordinator.strategies.opening import make
from tests.unit.coordinator.strategies.client_facts import client_facts

EAST, NORTH = (1.0, 0.0), (0.0, 1.0)


def client(
    i: int, sketch: tuple[float, ...] | None = EAST, *, reliability: float = 1.0, **facts: Any
) -> ClientFacts:
    vector = None if sketch is None else Sketch(np.array(sketch, np.float32), reliability)
    return client_facts(i, **{"alignment_set": "set", "examples": 1, "sketch": vector} | facts)


def newcomer(i: int, sketch: tuple[float, float] | None = EAST, **facts: Any) -> ClientFacts:
    return client(i, sketch, age=None, examples=0, is_source=False, **facts)


def weigh(*clients: ClientFacts, decay: float = 0.5, **options: Any) -> Weighing:
    """Weigh peers, without the client's own state unless the options include it."""
    return make("fedmosaic", {"mix": "gate"} | options).weigh(Cohort(clients, decay))


def by_changes(changes: list[list[float]], *clients: ClientFacts, **options: Any) -> Floats:
    cohort = Cohort(clients, 0.5, np.array(changes))
    return make("fedmosaic", options).weigh(cohort).relevance


def test_weights_are_a_softmax_of_cosines() -> None:
    weighing = weigh(
        client(0, EAST),
        client(1, (3.0, 0.0)),
        client(2, (1.0, 1.0)),
        temperature=0.5,
        include_self=True,
        min_relevance=None,
    )
    cosines = np.array([1.0, 1.0, np.sqrt(0.5)])
    np.testing.assert_allclose(weighing.similarity[0], cosines, atol=1e-8)
    expected = np.exp(cosines / 0.5) / np.exp(cosines / 0.5).sum()
    np.testing.assert_allclose(weighing.relevance[0], expected, atol=1e-8)
    np.testing.assert_allclose(weighing.entropy[0], -(expected * np.log(expected)).sum(), atol=1e-8)


def test_the_own_state_is_excluded_by_gate() -> None:
    assert weigh(client(0), client(1)).relevance.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_changes_separate_clients_of_contradicting_tasks() -> None:
    inside, between = 0.6, 0.4
    changes = [[1 if i == j else inside if i % 2 == j % 2 else between for j in range(6)] for i in range(6)]
    relevance = by_changes(changes, *(client(i) for i in range(6)))
    assert np.allclose(relevance.sum(axis=1), 1)
    for i in range(6):
        same = [j for j in range(6) if j % 2 == i % 2]
        assert relevance[i, same].sum() > 0.9
        assert relevance[i, i] == pytest.approx(relevance[i, same].mean(), rel=0.15)


def test_noisy_changes_of_one_task_are_weighted_uniformly() -> None:
    noise = np.random.default_rng(0).normal(0.7, 0.03, (9, 9))
    changes = (noise + noise.T) / 2
    relevance = by_changes(changes.tolist(), *(client(i) for i in range(9)))
    assert (1 / np.square(relevance).sum(axis=1) > 7).all()  # of nine voices


def test_a_client_with_a_distinct_task_hears_itself() -> None:
    changes = np.full((4, 4), 0.7)
    changes[3, :3] = changes[:3, 3] = 0.1
    relevance = by_changes(changes.tolist(), *(client(i) for i in range(4)))
    assert relevance[3, 3] > 0.97
    assert (relevance[:3, 3] < 1e-4).all()


def test_a_client_with_lower_cosines_hears_its_peers() -> None:
    # Measured: five silos of one task with twelve examples each, of which two learn nearly the same.
    upper = [[0.23, 0.23, 0.24, 0.16], [0.19, 0.39, 0.25], [0.24, 0.15], [0.23]]
    changes = np.eye(5)
    for i, row in enumerate(upper):
        changes[i, i + 1 :] = changes[i + 1 :, i] = row
    relevance = by_changes(changes.tolist(), *(client(i) for i in range(5)))
    assert (np.diag(relevance) < 0.4).all()


def test_pair_is_not_measured_by_other_pairs() -> None:
    clients = client(0), client(1), client(2, NORTH), client(3, NORTH), client(4, NORTH)
    changes = np.full((5, 5), 0.1)
    changes[:2, :2], changes[2:, 2:] = 0.2, 0.8
    np.testing.assert_allclose(by_changes(changes.tolist(), *clients)[0], [0.5, 0.5, 0, 0, 0])


@pytest.mark.parametrize(("first", "size", "inside", "between"), [(2, 2, 0.79, 0.3), (3, 6, 0.65, 0.3)])
def test_group_with_small_cosines_listens_to_itself(
    first: int, size: int, inside: float, between: float
) -> None:
    changes = np.full((first + size, first + size), between)
    changes[:first, :first], changes[first:, first:] = 0.5, inside
    relevance = by_changes(changes.tolist(), *(client(i) for i in range(first + size)))
    assert relevance[0, :first].sum() > 0.9
    assert 0.75 < relevance[0, 0] / relevance[0, 1] < 1.25


def test_sketches_decide_where_changes_are_unknown() -> None:
    unknown = float("nan")
    changes = [[1.0, 0.7, unknown], [0.7, 1.0, unknown], [unknown, unknown, unknown]]
    clients = client(0), client(1), newcomer(2)
    assert by_changes(changes, *clients)[2].tolist() == [0.5, 0.5, 0.0]
    assert by_changes(changes, client(0), client(1, NORTH), newcomer(2))[0].tolist() == [1.0, 0.0, 0.0]


def test_mix_and_evidence_decide_whether_changes_are_compared() -> None:
    compared = {mix: make("fedmosaic", {"mix": mix}).traits.compares_changes for mix in ("replace", "gate")}
    assert compared == {"replace": True, "gate": False}
    assert not make("fedmosaic", {"evidence": "sketches"}).traits.compares_changes


def test_sketches_are_centred_from_three_clients_on() -> None:
    two = weigh(client(0, EAST), client(1, (1.0, 0.1)), centre=True)
    assert two.similarity[0, 1] > 0.99
    three = weigh(client(0, (10.0, 1.0)), client(1, (10.0, 1.1)), client(2, (10.0, -1.0)), centre=True)
    assert three.similarity[0, 1] > 0.99
    assert three.similarity[0, 2] < -0.99
    assert three.relevance[0].tolist() == [0.0, 1.0, 0.0]


def test_similarity_is_corrected_for_noise() -> None:
    """Two samples of one task, half noise each: their cosine is .5, and what they have in common is all."""
    noisy = [
        client(i, vector, reliability=0.5) for i, vector in enumerate([(1.0, 1.0, 0.0), (1.0, 0.0, 1.0)])
    ]
    assert weigh(*noisy).similarity[0, 1] == pytest.approx(1.0)
    assert weigh(*noisy).relevance.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    trusted = [client(0, (1.0, 1.0)), client(1, (1.0, 0.0))]
    assert weigh(*trusted).similarity[0, 1] == pytest.approx(0.5**0.5)


def test_low_reliability_at_most_doubles_the_similarity() -> None:
    honest = client(0, EAST)
    liar = client(1, (1.0, 4.0), reliability=1e-6)
    assert weigh(honest, liar).similarity[0, 1] == pytest.approx(2 / 17**0.5)
    assert weigh(honest, liar).relevance.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_clients_of_one_task_give_themselves_no_weight() -> None:
    facts = [client(i, (1.0, 0.1 * i)) for i in range(4)]
    assert not np.diag(weigh(*facts).relevance).any()


def test_clients_without_a_sketch_are_not_similar() -> None:
    # After centring two zero vectors would both be minus the mean, and each other's nearest.
    facts = [client(0, (1.0, 2.0)), client(1, (2.0, 1.0)), client(2, None), client(3, None)]
    weighing = weigh(*facts, centre=True)
    assert np.isnan(weighing.similarity[2, 3])
    assert weighing.relevance[2].tolist() == [0.0, 0.0, 1.0, 0.0]


def test_stale_clients_do_not_change_the_centre() -> None:
    here = [client(0, (1.0, 0.2)), client(1, (1.0, 0.3)), client(2, (1.0, -0.5))]
    gone = client(3, (-50.0, 50.0), age=9, is_source=False)
    without, beside = weigh(*here, centre=True), weigh(*here, gone, centre=True)
    np.testing.assert_allclose(beside.similarity[:3, :3], without.similarity)
    np.testing.assert_allclose(beside.relevance[:3, :3], without.relevance)


def test_peers_at_or_below_the_floor_are_dropped() -> None:
    facts = [client(0, EAST), client(1, NORTH)]
    assert weigh(*facts, min_relevance=0.0).relevance[0].tolist() == [1.0, 0.0]
    assert weigh(*facts, min_relevance=-0.1).relevance[0].tolist() == [0.0, 1.0]
    assert weigh(*facts, min_relevance=None).relevance[0].tolist() == [0.0, 1.0]


def test_top_k_keeps_the_most_similar_peers() -> None:
    facts = [client(0, EAST), client(1, (1.0, 0.1)), client(2, (1.0, 0.2)), client(3, (1.0, 0.3))]
    weighing = weigh(*facts, top_k=2)
    assert (weighing.relevance[0] > 0).tolist() == [False, True, True, False]


def test_absent_clients_fade_before_the_softmax_is_renormalised() -> None:
    facts = [client(0), client(1, age=0), client(2, age=2)]
    weighing = weigh(*facts)
    np.testing.assert_allclose(weighing.relevance[0], [0.0, 0.8, 0.2])


def test_examples_count_with_weight_by_examples() -> None:
    facts = [client(0), client(1, examples=30), client(2, examples=10)]
    np.testing.assert_allclose(weigh(*facts).relevance[0], [0.0, 0.5, 0.5])
    weighing = weigh(*facts, weight_by_examples=True)
    np.testing.assert_allclose(weighing.relevance[0], [0.0, 0.75, 0.25])


@pytest.mark.parametrize(("mix", "share"), [("replace", 1), ("gate", 0)])
def test_established_clients_listen_to_their_own_base_model(mix: str, share: int) -> None:
    facts = [client(0), client(1), client(2, base_model="l")]
    weighing = weigh(*facts, mix=mix)
    np.testing.assert_allclose(weighing.relevance[0], np.array([share, 1, 0]) / (1 + share))
    assert weighing.relevance[2].tolist() == [0.0, 0.0, 1.0]
    everyone = weigh(*facts, mix=mix, sources="all")
    np.testing.assert_allclose(everyone.relevance[0], np.array([share, 1, 1]) / (2 + share))


def test_a_newcomer_listens_across_base_models() -> None:
    facts = [client(0, EAST), client(1, NORTH), newcomer(2, (1.0, 0.1), base_model="l")]
    assert weigh(*facts).relevance[2].tolist() == [1.0, 0.0, 0.0]


def test_a_newcomer_with_a_dissimilar_sketch_gets_zeros() -> None:
    facts = [client(0, EAST), client(1, EAST), newcomer(2, (-1.0, 0.0))]
    weighing = weigh(*facts)
    assert weighing.relevance[2].tolist() == [0.0, 0.0, 0.0]
    assert not weighing.of_module("b0.q")[2].any()


def test_newcomers_without_a_sketch_get_the_plain_mean() -> None:
    facts = [
        client(0, EAST, examples=1000),
        client(1, NORTH, age=2),
        client(2, EAST, alignment_set=None, base_model="x"),
        newcomer(3, None, base_model="l"),
    ]
    weighing = weigh(*facts, min_relevance=1.0, weight_by_examples=True)
    np.testing.assert_allclose(weighing.relevance[3], [0.5, 0.5, 0.0, 0.0])


def test_sketches_of_different_models_are_not_compared() -> None:
    weighing = weigh(client(0, sketch_model="a"), client(1, sketch_model="b"))
    assert np.isnan(weighing.similarity[0, 1])
    assert weighing.relevance.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_base_models_match_only_inside_an_alignment_set() -> None:
    facts = [client(0, alignment_set=None), client(1, base_model="l", alignment_set=None)]
    assert weigh(*facts, sources="all").relevance.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    facts = [client(0), client(1, base_model="l", alignment_set="another")]
    assert weigh(*facts, sources="all").relevance.tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    "options",
    [{"guard": True}, {"temperature": 0}, {"top_k": 0}, {"min_relevance": float("nan")}, {"tau": 0.1}],
)
def test_meaningless_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make("fedmosaic", options)


@pytest.mark.parametrize("centre", [False, True])
def test_unreliable_private_sketches_are_not_compared(centre: bool) -> None:
    """Chance makes noise alike: better to be alone than to hear a stranger."""
    vectors = np.eye(64, dtype=np.float32)[[0, 0, 1]]
    for reliability, heard in ((0.2, False), (0.4, True)):
        facts = [
            replace(client(i), sketch=Sketch(vector, reliability, epsilon=1.0))
            for i, vector in enumerate(vectors)
        ]
        weighing = weigh(*facts, centre=centre)
        assert np.isnan(weighing.similarity[0, 1]) != heard
        assert weighing.relevance[0].tolist() == ([0, 1, 0] if heard else [1, 0, 0])
        assert weighing.similarity[0, 0] == pytest.approx(1)


@pytest.mark.parametrize("guard", ["on", "strict"])
def test_guard_options_determine_the_caps(guard: str) -> None:
    assert make("fedmosaic", {"guard": guard}).caps == Caps(peer=0.2, peers=0.7, strict=guard == "strict")


def test_replace_serves_the_group_mean_including_the_client() -> None:
    group = [client(0, examples=8), client(1, examples=128), client(2, examples=128), client(3, NORTH)]
    plain = weigh(*group, mix="replace", top_k=2)
    np.testing.assert_allclose(plain.relevance[:3], np.tile([1 / 3, 1 / 3, 1 / 3, 0], (3, 1)))
    assert plain.relevance[3].tolist() == [0, 0, 0, 1]
    weighted = weigh(*group, mix="replace", weight_by_examples=True)
    np.testing.assert_allclose(weighted.relevance[:3], np.tile([8 / 264, 128 / 264, 128 / 264, 0], (3, 1)))


def test_replace_keeps_the_state_of_returning_clients() -> None:
    weighing = weigh(client(0), client(1, age=5, is_source=False), newcomer(2), mix="replace")
    assert weighing.relevance[0].tolist() == [1, 0, 0]
    np.testing.assert_allclose(weighing.relevance[1], [32 / 33, 1 / 33, 0])
    assert weighing.relevance[2].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("guard", "shares"),
    [
        ("off", (1 / 3, 1 / 4, 1 / 6)),
        ("on", (1 / 3, 0.3, 0.3)),
        ("strict", (0.6, 0.4, 0.3)),
    ],
)
def test_shares_of_the_own_state_match_the_documentation(guard: str, shares: tuple[float, ...]) -> None:
    strategy = make("fedmosaic", {"guard": guard})
    for size, share in zip((3, 4, 6), shares, strict=True):
        weighing = strategy.weigh(Cohort([client(i) for i in range(size)], 0.5))
        served = weighing.relevance[0]
        if strategy.caps is not None:
            # Of one length and nearly one direction: `strict` multiplies by the cosine.
            products = np.full((size, size), 1.0) + 1e-4 * np.eye(size)
            kinds = dict.fromkeys(weighing.cohort.kinds(), products)
            served = guard_weights(weighing, kinds, strategy.caps).of_module("b0.q")[0]
        assert served[0] == pytest.approx(share, abs=1e-3)
        np.testing.assert_allclose(served[1:], (1 - share) / (size - 1), atol=1e-3)


def test_the_guard_is_on_by_default() -> None:
    assert make("fedmosaic", {}).caps is not None
    assert make("fedmosaic", {"guard": "off"}).caps is None
