"""Revisions in an agent's folder: numbers, durable copies, and what is deleted."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from client_agent.errors import AdapterUnreadable, RevisionMissing
from client_agent.revisions import store as store_module
from client_agent.revisions.store import RevisionStore
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import (
    BANK,
    EXPERT_BODIES,
    FINAL_WEIGHTS,
    PLAN,
    REVISION,
    TRAINED,
    WEIGHTS,
    RoundFolders,
)
from schemas.wire.digests import digest_of
from tests.unit.client_agent.revisions.stored_rounds import BASE, add_end, add_round, tensors


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "fed_1"


@pytest.fixture
def store(tmp_path: Path) -> RevisionStore:
    return RevisionStore(tmp_path)


def filled(store: RevisionStore, home: Path, *losses: float | None) -> RevisionStore:
    """Add a revision for each validation loss."""
    for number, loss in enumerate(losses, start=1):
        add_round(home, number, loss=loss)
    store.add_states(home)
    return store


def test_each_trained_round_becomes_one_revision(store: RevisionStore, home: Path) -> None:
    filled(store, home, 2.0, 1.5)
    add_round(home, 3, loss=1.0, kept="served")
    (third,) = store.add_states(home)
    assert store.add_states(home) == []
    assert [revision.number for revision in store.all()] == [1, 2, 3]
    assert (third.round, third.variant, third.validation_loss) == (3, "served", 1.0)
    assert (third.base_model, third.plan, third.federation) == (BASE, digest_of(b"{}"), "fed_1")


def test_first_round_of_a_bank_has_no_fetched_experts(store: RevisionStore, home: Path) -> None:
    folder = add_round(home, 1)
    folder.write(BANK, b"{}")
    store.add_states(home)
    assert list((store.home(1) / EXPERT_BODIES).iterdir()) == []


@pytest.mark.parametrize("kept", ["served", "trained"])
def test_revision_has_the_kept_tensors_alone(store: RevisionStore, home: Path, kept: str) -> None:
    folder = add_round(home, 1, kept=kept)  # type: ignore[arg-type]
    store.add_states(home)
    stored = TrainingResult.read(store.home(1) / "rounds" / "000001" / TRAINED)
    adapter, _ = stored.of(stored.scores.kept)
    expected = tensors(1.0 if kept == "trained" else 1.2)
    assert all(np.array_equal(adapter[name], values) for name, values in expected.items())
    assert stored.optimiser == {}
    assert {"served": stored.adapter, "trained": stored.start}[kept] == {}
    assert store.checked(1).digest == digest_of((store.home(1) / "rounds" / "000001" / TRAINED).read_bytes())
    # The other files of the round take no space of their own.
    assert os.path.samefile(store.home(1) / "rounds" / "000001" / WEIGHTS, folder.path / WEIGHTS)


def test_revision_outlives_its_round(store: RevisionStore, home: Path) -> None:
    filled(store, home, 2.0, 1.0, 3.0)
    RoundFolders(home / "rounds").forget_old(1)
    assert not (home / "rounds" / "000001").exists()
    assert store.checked(1).round == 1
    assert (store.home(1) / "rounds" / "000001" / WEIGHTS).read_bytes() == bytes(16)


def test_final_weights_are_a_revision_if_kept(store: RevisionStore, home: Path) -> None:
    filled(store, home, 2.0)
    add_end(home, loss=1.5, earlier=2.0)
    (final,) = store.add_states(home)
    assert (final.number, final.variant, final.validation_loss) == (2, "final", 1.5)
    assert final.digest == digest_of(b"final weights")
    assert (store.home(2) / FINAL_WEIGHTS).read_bytes() == b"final weights"
    assert store.add_states(home) == []


def test_worse_final_weights_are_no_revision(store: RevisionStore, home: Path) -> None:
    filled(store, home, 2.0)
    add_end(home, loss=2.5, earlier=2.0)
    assert store.add_states(home) == []


def test_other_final_weights_are_another_revision(store: RevisionStore, home: Path) -> None:
    filled(store, home, 2.0)
    add_end(home)
    store.add_states(home)
    (home / FINAL_WEIGHTS).unlink()
    (home / FINAL_WEIGHTS).write_bytes(b"after a restored backup")
    os.utime(home / FINAL_WEIGHTS, ns=(1, 1))
    (again,) = store.add_states(home)
    assert (again.number, again.digest) == (3, digest_of(b"after a restored backup"))


def test_number_is_never_used_again(store: RevisionStore, home: Path) -> None:
    filled(store, home, 2.0)
    add_round(home, 2)
    # As in an export folder that is newer than a restored agent's folder.
    (revision,) = store.add_states(home, above=11)
    assert revision.number == 12
    (store.home(12) / "revision.json").write_bytes(b"damaged")
    add_round(home, 3)
    assert [revision.number for revision in store.add_states(home)] == [13]
    assert [revision.number for revision in store.all()] == [1, 13]


@pytest.mark.parametrize("place", ["link", "rename", "marker"])
def test_killed_addition_is_completed_once(
    store: RevisionStore, home: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    add_round(home, 1)
    with monkeypatch.context() as patch:
        # A killed process cleans nothing up.
        patch.setattr(store_module.shutil, "rmtree", lambda *_, **__: None)
        if place == "link":
            patch.setattr(store_module, "_link", die)
        elif place == "rename":
            patch.setattr(store_module.os, "rename", die)
        else:
            patch.setattr(store_module, "_marked", die)
        with pytest.raises(Killed):
            store.add_states(home)
    assert len(store.all()) == (1 if place == "marker" else 0)
    store.add_states(home)
    assert [revision.number for revision in store.all()] == [1]
    assert [entry.name for entry in store.path.iterdir() if entry.is_dir()] == ["000001"]
    assert (home / "rounds" / "000001" / REVISION).is_file()


def test_replaced_tensors_of_a_revision_are_refused(store: RevisionStore, home: Path) -> None:
    filled(store, home, 2.0)
    file = store.home(1) / "rounds" / "000001" / TRAINED
    file.write_bytes(add_round(home, 2).read(TRAINED))
    with pytest.raises(AdapterUnreadable, match="was replaced"):
        store.checked(1)


def test_missing_revision_names_those_present(store: RevisionStore, home: Path) -> None:
    filled(store, home, 2.0, 1.0)
    with pytest.raises(RevisionMissing, match=r"revision 7 is not in .*, which has 1, 2; .*agent history"):
        store.find(7)


def test_newest_best_and_served_outlive_pruning(store: RevisionStore, home: Path) -> None:
    filled(store, home, 2.0, 1.0, 3.0, 3.0, 3.0)
    assert store.best() == store.find(2)
    assert store.prune(1, 1 << 30, [3]) == [1, 4]
    assert store.numbers() == [2, 3, 5]
    assert store.prune(2, 1 << 30, []) == [3]
    assert store.prune(1, 1, []) == []


def test_pruning_keeps_revisions_within_bytes(store: RevisionStore, home: Path) -> None:
    filled(store, home, *[None] * 6)
    assert store.best() is None
    total = store.size()
    assert store.prune(10, total, []) == []
    deleted = store.prune(10, total // 2, [])
    assert store.size() <= total // 2
    assert store.numbers() == list(range(len(deleted) + 1, 7))


def test_losses_of_other_plans_are_not_compared(store: RevisionStore, home: Path) -> None:
    filled(store, home, 0.1)
    add_round(home, 2, loss=2.0)
    write_durably(home / PLAN, b'{"another": 1}')
    store.add_states(home)
    assert store.best() == store.find(2)
