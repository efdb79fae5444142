"""The stored base delta: whole or by increments, each added to its own round only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.errors import AdapterUnreadable
from client_agent.storage.base_delta import (
    BaseDelta,
    BaseDeltaMissing,
    ServedDelta,
    apply_weights,
    newest_base_delta,
    read_served,
    round_base_delta,
)
from client_agent.storage.round_folder import FOLD, RoundFolders
from schemas.maths.adapter import Layout, lora_layout
from schemas.maths.factors import Factors
from schemas.messages.updates import FoldedWeightsManifest
from schemas.wire.envelope import pack
from tests.scene.tensors import filled_tensors

LAYOUT: Layout = lora_layout(1, {"q": (5, 6), "down": (4, 5)}, 2)


def manifest(number: int, fold_from: int | None) -> FoldedWeightsManifest:
    return FoldedWeightsManifest(
        federation="f", recipe={}, round=number, client="c", pack=None, fold_from=fold_from
    )


def factors(seed: int, rank: int = 2) -> Factors:
    rng = np.random.default_rng(seed)
    return Factors(*(rng.standard_normal(shape).astype(np.float32) for shape in ((rank, 6), (5, rank))))


def served_delta(number: int, fold_from: int | None, seed: int = 0) -> ServedDelta:
    return ServedDelta(manifest(number, fold_from), {}, {"l0.q": factors(seed)} if fold_from else {})


def product(delta: BaseDelta) -> np.ndarray:
    module_factors = delta.added["l0.q"]
    return np.asarray(module_factors.B @ module_factors.A)


def test_base_delta_increments_add_up_in_minimal_rank() -> None:
    delta = apply_weights(BaseDelta(1, {}), served_delta(2, 1, seed=1))
    for number in range(2, 8):
        delta = apply_weights(delta, served_delta(number + 1, number, seed=number))
    expected = sum(factors(seed).B @ factors(seed).A for seed in range(1, 8))
    np.testing.assert_allclose(product(delta), expected, rtol=1e-4, atol=1e-5)
    assert (delta.round, delta.added["l0.q"].rank) == (8, 5)


def test_whole_base_delta_replaces_the_stored_one() -> None:
    delta = apply_weights(BaseDelta(3, {"l0.q": factors(1)}), served_delta(7, 1, seed=2))
    assert delta.round == 7
    np.testing.assert_array_equal(delta.added["l0.q"].A, factors(2).A)
    assert apply_weights(delta, served_delta(8, None)) == BaseDelta(8, {})


def test_repeated_weights_leave_base_delta_unchanged() -> None:
    delta = apply_weights(BaseDelta(2, {"l0.q": factors(1)}), served_delta(3, 2, seed=2))
    assert apply_weights(delta, served_delta(3, 2, seed=2)) is delta


def test_increment_to_another_round_is_refused() -> None:
    for stored in (BaseDelta(1, {}), BaseDelta(3, {"l0.q": factors(1)})):
        with pytest.raises(BaseDeltaMissing, match="served the whole"):
            apply_weights(stored, served_delta(5, 4))


def test_round_stores_its_base_delta(tmp_path: Path) -> None:
    rounds = RoundFolders(tmp_path)
    first = round_base_delta(rounds, rounds.open(2), served_delta(2, 1, seed=1))
    second = round_base_delta(rounds, rounds.open(3), served_delta(3, 2, seed=2))
    assert newest_base_delta(rounds, before=9).round == second.round == 3
    np.testing.assert_allclose(
        product(second), product(first) + factors(2).B @ factors(2).A, rtol=1e-5, atol=1e-6
    )
    again = round_base_delta(rounds, rounds.open(3), served_delta(3, 2, seed=2))
    np.testing.assert_array_equal(product(again), product(second))
    rounds.open(3).write(FOLD, b"half")
    with pytest.raises(AdapterUnreadable, match="damaged"):
        newest_base_delta(rounds, before=9)


def test_weights_are_read_with_their_base_delta() -> None:
    q = factors(3, rank=4)
    adapter = filled_tensors(LAYOUT, 1.0)
    body = pack({**adapter, "l0.q.RA": q.A, "l0.q.RB": q.B}, manifest(3, 2))
    read = read_served(body, LAYOUT)
    assert read.manifest.fold_from == 2
    assert read.adapter.keys() == LAYOUT.keys()
    np.testing.assert_array_equal(read.added["l0.q"].B, q.B)
    alone = read_served(pack({"l0.q.RA": q.A, "l0.q.RB": q.B}, manifest(3, 2)), LAYOUT)
    assert not any(values.any() for values in alone.adapter.values())


def test_half_a_base_delta_is_refused() -> None:
    q = factors(3)
    for wrong in ({"l0.q.RA": q.A}, {"l0.q.RA": q.A[:1], "l0.q.RB": q.B}, {"l9.q.RA": q.A, "l9.q.RB": q.B}):
        with pytest.raises(AdapterUnreadable):
            read_served(pack(wrong, manifest(3, 2)), LAYOUT)
