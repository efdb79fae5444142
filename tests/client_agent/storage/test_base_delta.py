"""What served weights add to a base model for good: whole, bit by bit, and never to the wrong thing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_agent.errors import AdapterUnreadable
from client_agent.storage.base_delta import Fold, FoldMissing, Served, after, fold_of, newest, read_served
from client_agent.storage.round_folder import FOLD, RoundFolders
from schemas.maths.adapter import Layout, lora_layout
from schemas.maths.factors import Factors
from schemas.messages.updates import FoldedWeightsManifest
from schemas.wire.envelope import pack

LAYOUT: Layout = lora_layout(1, {"q": (5, 6), "down": (4, 5)}, 2)


def manifest(number: int, fold_from: int | None) -> FoldedWeightsManifest:
    return FoldedWeightsManifest(
        federation="f", recipe={}, round=number, client="c", pack=None, fold_from=fold_from
    )


def factors(seed: int, rank: int = 2) -> Factors:
    rng = np.random.default_rng(seed)
    return Factors(*(rng.standard_normal(shape).astype(np.float32) for shape in ((rank, 6), (5, rank))))


def served(number: int, fold_from: int | None, seed: int = 0) -> Served:
    return Served(manifest(number, fold_from), {}, {"l0.q": factors(seed)} if fold_from else {})


def adds(fold: Fold) -> np.ndarray:
    one = fold.added["l0.q"]
    return np.asarray(one.B @ one.A)


def test_increments_add_up_in_no_more_ranks_than_the_sum_has() -> None:
    fold = after(Fold(1, {}), served(2, 1, seed=1))
    for number in range(2, 8):
        fold = after(fold, served(number + 1, number, seed=number))
    wanted = sum(factors(seed).B @ factors(seed).A for seed in range(1, 8))
    np.testing.assert_allclose(adds(fold), wanted, rtol=1e-4, atol=1e-5)
    assert (fold.round, fold.added["l0.q"].rank) == (8, 5)


def test_the_whole_takes_the_place_of_what_is_here() -> None:
    fold = after(Fold(3, {"l0.q": factors(1)}), served(7, 1, seed=2))
    assert fold.round == 7
    np.testing.assert_array_equal(fold.added["l0.q"].A, factors(2).A)
    assert after(fold, served(8, None)) == Fold(8, {})


def test_the_same_weights_again_add_nothing() -> None:
    fold = after(Fold(2, {"l0.q": factors(1)}), served(3, 2, seed=2))
    assert after(fold, served(3, 2, seed=2)) is fold


def test_an_increment_to_something_else_is_refused_and_says_what_helps() -> None:
    for here in (Fold(1, {}), Fold(3, {"l0.q": factors(1)})):
        with pytest.raises(FoldMissing, match="served the whole"):
            after(here, served(5, 4))


def test_a_round_keeps_what_it_made_of_the_base_model(tmp_path: Path) -> None:
    rounds = RoundFolders(tmp_path)
    first = fold_of(rounds, rounds.open(2), served(2, 1, seed=1))
    second = fold_of(rounds, rounds.open(3), served(3, 2, seed=2))
    assert newest(rounds, before=9).round == second.round == 3
    np.testing.assert_allclose(adds(second), adds(first) + factors(2).B @ factors(2).A, rtol=1e-5, atol=1e-6)
    again = fold_of(rounds, rounds.open(3), served(3, 2, seed=2))
    np.testing.assert_array_equal(adds(again), adds(second))
    rounds.open(3).write(FOLD, b"half")
    with pytest.raises(AdapterUnreadable, match="damaged"):
        newest(rounds, before=9)


def test_weights_are_read_with_what_they_add() -> None:
    q = factors(3, rank=4)
    adapter = {name: np.ones(shape, np.float32) for name, shape in LAYOUT.items()}
    body = pack({**adapter, "l0.q.RA": q.A, "l0.q.RB": q.B}, manifest(3, 2))
    read = read_served(body, LAYOUT)
    assert read.manifest.fold_from == 2
    assert read.adapter.keys() == LAYOUT.keys()
    np.testing.assert_array_equal(read.added["l0.q"].B, q.B)
    alone = read_served(pack({"l0.q.RA": q.A, "l0.q.RB": q.B}, manifest(3, 2)), LAYOUT)
    assert not any(values.any() for values in alone.adapter.values())


def test_half_a_product_is_no_weights() -> None:
    q = factors(3)
    for wrong in ({"l0.q.RA": q.A}, {"l0.q.RA": q.A[:1], "l0.q.RB": q.B}, {"l9.q.RA": q.A, "l9.q.RB": q.B}):
        with pytest.raises(AdapterUnreadable):
            read_served(pack(wrong, manifest(3, 2)), LAYOUT)
