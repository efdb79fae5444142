"""Properties of the guard on any input, such as the bound in docs/explanation/poisoning.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.aggregation.guard import GuardedWeights, guard_weights
from coordinator.strategies.base import ClientFacts, Cohort, Floats, Weighing, WeightReduction
from coordinator.strategies.capabilities import Caps
from tests.unit.coordinator.strategies.client_facts import client_facts

PQ, LORA = "b0.q", "l0.q"
FORMS = {PQ: (("b0.q.P", (3, 3)),), LORA: (("l0.q.A", (2, 3)), ("l0.q.B", (3, 2)))}
SIZES = {PQ: 9, LORA: 12}
ON = Caps(peer=0.2, peers=0.7, strict=False)
STRICT = Caps(peer=0.2, peers=0.7, strict=True)
every_caps = pytest.mark.parametrize("caps", [ON, STRICT], ids=["on", "strict"])
Updates = dict[str, Floats]  # per module (N, size); clients without the module have zeros
Scene = tuple[Cohort, Floats, Updates, list[int]]


def client(i: int, **facts: Any) -> ClientFacts:
    return client_facts(i, **{"modules": FORMS} | facts)


def guard(cohort: Cohort, relevance: Floats, updates: Updates, caps: Caps) -> GuardedWeights:
    weighing = Weighing(cohort, relevance, np.full_like(relevance, np.nan))
    products = {cohort.kind(module): values @ values.T for module, values in updates.items()}
    return guard_weights(weighing, products, caps)


def guard_lora(
    values: Floats, caps: Caps = ON, relevance: Floats | None = None, **facts: Any
) -> GuardedWeights:
    n = len(values)
    of_client = [{name: values[i] for name, values in facts.items()} for i in range(n)]
    clients = [client(i, modules={LORA: FORMS[LORA]}, **of_client[i]) for i in range(n)]
    if relevance is None:
        relevance = (1 - np.eye(n)) / (n - 1)
    return guard(Cohort(clients, 1.0), relevance, {LORA: values}, caps)


def contribution(
    guarded: GuardedWeights, updates: Updates, i: int, members: list[int]
) -> tuple[float, float]:
    """Return the clients' contribution to the weights of i, and the distance they move them, in i's norms."""
    given_by, moved, from_own = 0.0, 0.0, 0.0
    for module, values in updates.items():
        row = guarded.of_module(module)[i]
        given_by += float(np.square(row[members] @ values[members]).sum())
        moved += float(np.square(row[members] @ (values[members] - values[i])).sum())
        from_own += float(np.square(values[i]).sum())
    return (given_by / from_own) ** 0.5, (moved / from_own) ** 0.5


lengths = st.sampled_from([0.0, 1e-6, 0.1, 1.0, 1.0, 2.0, 20.0, 1e4])


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Draw clients, of whom some are attackers that send anything, and a relevance that favours anybody."""
    n = draw(st.integers(2, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    common = {module: rng.standard_normal(size) for module, size in SIZES.items()}
    towards = draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 3.0]), min_size=n, max_size=n))
    scale = draw(st.lists(lengths, min_size=n, max_size=n))
    copies = draw(st.booleans())
    attackers = sorted(draw(st.sets(st.integers(0, n - 1), max_size=n - 1)))
    clients, updates = [], {module: np.zeros((n, size)) for module, size in SIZES.items()}
    for i in range(n):
        kinds = draw(st.sampled_from([[PQ, LORA], [PQ, LORA], [PQ], [LORA]]))
        copied = copies and i in attackers
        for module in kinds:
            noise = rng.standard_normal(SIZES[module]) if not copied else 0.0
            updates[module][i] = scale[i] * (towards[attackers[0] if copied else i] * common[module] + noise)
        clients.append(
            client(
                i,
                base_model=draw(st.sampled_from(["s", "s", "l"])),
                alignment_set="x",
                modules={module: FORMS[module] for module in kinds},
                organisation=draw(st.sampled_from([None, None, "acme", "bolt"])),
            )
        )
    cohort = Cohort(clients, 1.0)
    drawn = rng.random((n, n)) ** draw(st.sampled_from([0.0, 1.0, 8.0])) * cohort.shares_any()
    drawn[:, rng.random(n) < 0.2] = 0.0
    if draw(st.booleans()):
        np.fill_diagonal(drawn, 0.0)
    total = drawn.sum(axis=1, keepdims=True)
    relevance = np.divide(drawn, total, out=np.eye(n), where=total > 0)
    modules = {module for facts in clients for module in facts.modules}
    return cohort, relevance, {module: updates[module] for module in modules}, attackers


@every_caps
@given(scene=scenes(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_guarded_weights_keep_caps_row_sums_and_order(caps: Caps, scene: Scene, seed: int) -> None:
    cohort, relevance, updates, attackers = scene
    guarded = guard(cohort, relevance, updates, caps)
    attackers_contribute_no_more_than_their_number_of_caps(guarded, updates, attackers, caps)
    rows_sum_to_one_and_are_not_negative(guarded, cohort, updates)
    order = np.random.default_rng(seed).permutation(len(relevance))
    renamed = [
        client(
            place,
            base_model=cohort.clients[i].base_model,
            alignment_set="x",
            modules=cohort.clients[i].modules,
            organisation=cohort.clients[i].organisation,
        )
        for place, i in enumerate(order)
    ]
    shuffled = {module: values[order] for module, values in updates.items()}
    again = guard(Cohort(renamed, 1.0), relevance[np.ix_(order, order)], shuffled, caps)
    for module in updates:
        before, after = guarded.of_module(module)[np.ix_(order, order)], again.of_module(module)
        np.testing.assert_allclose(before, after, atol=1e-9, err_msg="the order of clients matters")


def attackers_contribute_no_more_than_their_number_of_caps(
    guarded: GuardedWeights, updates: Updates, attackers: list[int], caps: Caps
) -> None:
    for i in range(len(guarded.cohort.clients)):
        accomplices = [j for j in attackers if j != i]
        if not any(values[i].any() for values in updates.values()):
            assert all(not guarded.of_module(module)[i, accomplices].any() for module in updates)
            continue
        cap = max(guarded.caps[guarded.cohort.kind(module)][i] for module in updates)
        assert cap == caps.peer or not caps.strict
        most = min(cap * len(accomplices), caps.peers)
        contributed, moved = contribution(guarded, updates, i, accomplices)
        assert contributed <= most * (1 + 1e-9)
        assert moved <= 2**0.5 * most * (1 + 1e-9)


def rows_sum_to_one_and_are_not_negative(guarded: GuardedWeights, cohort: Cohort, updates: Updates) -> None:
    for module in updates:
        weights = guarded.of_module(module)
        has = [module in facts.modules for facts in cohort.clients]
        np.testing.assert_allclose(weights.sum(axis=1), has, atol=1e-9)
        assert (weights >= 0).all()
        assert not weights[~cohort.shares(module) & ~np.eye(len(weights), dtype=bool)].any()
    report = guarded.report()
    np.testing.assert_allclose(report.served.sum(axis=1), 1.0, atol=1e-9)
    assert (np.abs(report.agreement[~np.isnan(report.agreement)]) <= 1 + 1e-9).all()


def test_equal_updates_have_equal_weights() -> None:
    values = np.array([[1.0, 0.2], [1.0, 0.1], [0.5, 0.5], [1.0, 0.1]]) @ np.eye(2, 12)
    row = guard_lora(values).of_module(LORA)[0]
    assert row[1] == pytest.approx(row[3], rel=1e-12)


def test_boosted_updates_are_clipped_to_the_receivers_norm() -> None:
    start, honest, boosted = np.eye(3, 12) + 1.0
    once = guard_lora(np.stack([start, honest, boosted]))
    again = guard_lora(np.stack([start, honest, 1000 * boosted]))
    np.testing.assert_allclose(once.of_module(LORA)[0, 1], again.of_module(LORA)[0, 1])
    np.testing.assert_allclose(once.of_module(LORA)[0, 2], 1000 * again.of_module(LORA)[0, 2])
    assert again.report().reductions[0, 2] & WeightReduction.LARGE


def test_opposed_updates_get_no_weight_and_change_nothing() -> None:
    same = np.ones((4, 12)) + 0.5 * np.eye(4, 12)
    alone = guard_lora(same[:3])
    beside = guard_lora(np.vstack([same[:3], -same[3], -20 * same[3]]))
    np.testing.assert_allclose(beside.of_module(LORA)[:3, :3], alone.of_module(LORA))
    assert not beside.of_module(LORA)[:3, 3:].any()
    assert (beside.report().reductions[:3, 3:] & WeightReduction.OPPOSED).all()


def test_copies_share_one_vote_however_they_are_scaled() -> None:
    rng = np.random.default_rng(3)
    honest = 1.0 + 0.5 * rng.standard_normal((4, 12))
    sent = 1.0 + 0.5 * rng.standard_normal(12)
    single = guard_lora(np.vstack([honest, sent])).of_module(LORA)[0]
    many = guard_lora(np.vstack([honest, *([sent * k] for k in (1, 2, 5, 20))]))
    row, clip = many.of_module(LORA)[0], np.linalg.norm(honest[0]) / np.linalg.norm(sent)
    attackers = sum(row[4 + k] * times for k, times in enumerate((1, 2, 5, 20)))
    assert attackers == pytest.approx(single[4] / min(1.0, clip) * clip, rel=0.1)
    assert (many.report().reductions[0, 4:] & WeightReduction.COPIES).all()


def test_similar_honest_updates_are_not_copies() -> None:
    rng = np.random.default_rng(4)
    values = 1.0 + 0.01 * rng.standard_normal((5, 12))
    guarded = guard_lora(values)
    assert guarded.report().agreement.min() > 0.99
    assert not (guarded.report().reductions & WeightReduction.COPIES).any()


def test_clients_of_another_organisation_share_one_cap() -> None:
    rng = np.random.default_rng(5)
    values = 1.0 + 0.5 * rng.standard_normal((8, 12))
    organisations = ["own", "own", None, None, "acme", "acme", "acme", "acme"]
    row = guard_lora(values, STRICT, organisation=organisations).of_module(LORA)[0]
    assert row[4:].sum() <= STRICT.peer + 1e-12
    free = guard_lora(values, STRICT).of_module(LORA)[0]
    assert free[4:].sum() > row[4:].sum()
    assert row[1] >= free[1]


def test_single_peers_have_a_larger_cap_unless_strict() -> None:
    values = np.ones((2, 12)) + np.eye(2, 12)
    np.testing.assert_allclose(guard_lora(values).of_module(LORA), [[0.3, 0.7], [0.7, 0.3]])
    strict = guard_lora(values, STRICT).of_module(LORA)
    np.testing.assert_allclose(strict, [[0.8, 0.2], [0.2, 0.8]])


def test_the_cap_shrinks_with_the_number_of_peers() -> None:
    rng = np.random.default_rng(8)
    values = 1.0 + 0.5 * rng.standard_normal((6, 12))
    caps = [
        float(guarded.caps[guarded.cohort.kind(LORA)][0])
        for guarded in (guard_lora(values[:n]) for n in range(2, 7))
    ]
    assert caps == pytest.approx([0.7, 0.35, 0.7 / 3, 0.2, 0.2])
    copied = np.vstack([values[:2], *[values[2]] * 5])
    guarded = guard_lora(copied)
    assert guarded.caps[guarded.cohort.kind(LORA)][0] == pytest.approx(0.35)


def test_peers_without_relevance_do_not_lower_the_cap() -> None:
    values = 1.0 + 0.5 * np.random.default_rng(8).standard_normal((8, 12))
    relevance = np.full((8, 8), 1e-4)
    relevance[:, :3] = 1 / 3
    guarded = guard_lora(values, relevance=relevance / relevance.sum(1)[:, None])
    assert guarded.caps[guarded.cohort.kind(LORA)][0] == pytest.approx(0.35, abs=1e-3)


def test_a_peer_with_all_relevance_counts_as_one_of_two() -> None:
    values = 1.0 + 0.5 * np.random.default_rng(8).standard_normal((5, 12))
    relevance = np.full((5, 5), 1e-6)
    relevance[:, 4] = 1.0
    guarded = guard_lora(values, relevance=relevance / relevance.sum(1)[:, None])
    assert guarded.caps[guarded.cohort.kind(LORA)][0] == pytest.approx(0.35)


def test_a_client_with_a_zero_update_keeps_it() -> None:
    values = np.vstack([np.zeros(12), np.ones((2, 12))])
    assert guard_lora(values).of_module(LORA)[0].tolist() == [1.0, 0.0, 0.0]


def test_copies_are_limited_in_a_newcomers_mixture() -> None:
    rng = np.random.default_rng(6)
    honest = 1.0 + 0.3 * rng.standard_normal((3, 12))
    sent = -1.0 + 0.3 * rng.standard_normal(12)
    values = np.vstack([np.zeros(12), honest, sent, 20 * sent, 400 * sent])
    relevance = np.eye(7)
    relevance[0] = [0.0, *[1 / 6] * 6]
    newcomer = {"age": [None, *[0] * 6]}
    guarded = guard_lora(values, relevance=relevance, **newcomer)
    row = guarded.of_module(LORA)[0]
    assert row[0] == 0.0
    assert row.sum() == pytest.approx(1.0)
    longest = np.linalg.norm(honest, axis=1).max()
    assert np.linalg.norm(row[4:] @ values[4:]) <= 0.4 * longest
    assert (guarded.report().reductions[0, 4:] & WeightReduction.COPIES).all()


@pytest.mark.parametrize(
    ("requested", "served"),
    [
        ([0.19, 0.19, 0.18, 0.16, 0.15, 0.13], [0.19, 0.19, 0.18, 0.16, 0.15, 0.13]),
        ([0.9, 0.05, 0.05, 0.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3, 0.0, 0.0, 0.0]),
        ([0.998, 0.002, 0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]),
        ([1 - 1e-9, 1e-9, 0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
    ids=["below the cap", "a guess", "a good guess", "nobody else counts"],
)
def test_newcomers_get_relevance_up_to_a_cap(requested: list[float], served: list[float]) -> None:
    rng = np.random.default_rng(7)
    values = np.vstack([np.zeros(12), 1.0 + 0.01 * rng.standard_normal((6, 12))])
    relevance = np.eye(7)
    relevance[0] = [0.0, *requested]
    row = guard_lora(values, relevance=relevance, age=[None, 0, 0, 0, 0, 0, 0]).of_module(LORA)[0]
    np.testing.assert_allclose(row[1:], served, atol=0.02)


def test_clipped_weight_is_not_moved_to_irrelevant_updates() -> None:
    values = np.zeros((3, 12))
    values[0, 0], values[1, 1] = 2.0, 1.0
    relevance = np.zeros((3, 3))
    relevance[2, :2] = 1.0, 1e-20
    guarded = guard_lora(values, relevance=relevance, age=[0, 0, None])
    assert guarded.of_module(LORA)[2].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-9)
