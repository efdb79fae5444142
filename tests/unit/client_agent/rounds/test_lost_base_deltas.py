"""Recovery of lost base deltas: the agent downloads the whole and continues with the same weights."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import update

from client_agent.identity.backup_recovery import accept, compare_state
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.download import download_whole
from client_agent.rounds.final_weights import finish
from client_agent.rounds.steps import take_part
from client_agent.storage.base_delta import (
    BaseDelta,
    BaseDeltaMissing,
    apply_weights,
    newest_base_delta,
    read_served,
)
from client_agent.storage.round_folder import FINAL_WEIGHTS, FOLD, WEIGHTS, RoundFolder
from client_agent.training.silo import Silo
from coordinator.db.tables.federations import FoldRow
from schemas.identity.keys import name_of
from schemas.messages.rounds import FinishedBrief
from schemas.wire.digests import digest_of
from tests.scene.agent_pair import Pair
from tests.scene.agent_rounds import layout_of
from tests.scene.agents import limited_sleep
from tests.scene.coordinator import Served

PLAN: dict[str, Any] = {
    "adapter": {"kind": "lora", "rank": 2, "scale": 4.0, "roles": ["q", "v"]},
    "wire": {"recipe": "dense"},
    "rounds": {"total": 9, "min_clients": 2},
}
BOTH = ("aster", "birch")
methods = pytest.mark.parametrize("strategy", ["flora", "fedex_lora"])


@pytest.fixture
def pair(pair: Callable[..., Pair]) -> Callable[..., Pair]:
    """Start a federation of two agents with PLAN: `pair(strategy, **plan)`."""
    return lambda strategy, **plan: pair(**(PLAN | {"strategy": {"name": strategy}} | plan))


def acting_change(folder: RoundFolder) -> dict[str, np.ndarray]:
    """Return the sum of a round's weights and all folds by module, (d_out, d_in)."""
    adapter = read_served(folder.read(WEIGHTS), layout_of(folder)).adapter
    added = BaseDelta.from_bytes(folder.read(FOLD)).added
    modules = sorted({name[:-2] for name in adapter})
    return {
        module: adapter[f"{module}.B"] @ adapter[f"{module}.A"]
        + (added[module].B @ added[module].A if module in added else 0)
        for module in modules
    }


def assert_alike(left: RoundFolder, right: RoundFolder) -> None:
    expected = acting_change(right)
    for module, values in acting_change(left).items():
        np.testing.assert_allclose(values, expected[module], atol=1e-5, err_msg=module)
        assert np.abs(values).max() > 1e-4


@pytest.mark.slow
@methods
@pytest.mark.parametrize("lost", ["all of it", "the last of it"])
def test_client_without_its_fold_recovers_the_same_weights(
    pair: Callable[..., Pair], strategy: str, lost: str
) -> None:
    two = pair(strategy)
    for _ in range(3):
        folders = two.run_round(*BOTH)
    assert_alike(folders["aster"], folders["birch"])
    for folder in two.members["aster"].workspace.rounds.newest_first():
        if lost == "all of it" or folder.number == 3:
            folder.forget(FOLD)
    for _ in range(2):
        folders = two.run_round(*BOTH)
        assert_alike(folders["aster"], folders["birch"])
    assert read_served(folders["aster"].read(WEIGHTS), layout_of(folders["aster"])).manifest.fold_from == 4


@pytest.mark.slow
def test_missing_whole_base_delta_is_an_error(pair: Callable[..., Pair], served: Served) -> None:
    two = pair("flora")
    for _ in range(2):
        two.run_round(*BOTH)
    participant, brief = two.members["aster"], two.brief("aster")
    assert (
        download_whole(participant.session, 2, digest_of(participant.workspace.rounds.open(2).read(WEIGHTS)))
        is None
    )  # it is the whole already
    for folder in participant.workspace.rounds.newest_first():
        folder.forget(FOLD)
    with served.database.write() as session:
        session.execute(
            update(FoldRow).where(FoldRow.federation_id == two.federation_id).values(payload_id=None)
        )
    with pytest.raises(BaseDeltaMissing, match="stop this client until one round is published without it"):
        take_part(participant, brief)


@pytest.mark.slow
def test_unsigned_whole_base_delta_is_not_used(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    two = pair("flora")
    for _ in range(3):
        two.run_round(*BOTH)
    participant = two.members["aster"]
    named = digest_of(participant.workspace.rounds.open(3).read(WEIGHTS))
    assert download_whole(participant.session, 3, named) is not None
    assert download_whole(participant.session, 3, digest_of(b"of other weights")) is None
    stranger = replace(participant.session, server_key=name_of(Ed25519PrivateKey.generate()))
    assert download_whole(stranger, 3, named) is None
    assert "round 3: whole base delta without a valid signature" in caplog.text


@pytest.mark.slow
@methods
def test_final_weights_include_the_whole_base_delta(pair: Callable[..., Pair], strategy: str) -> None:
    two = pair(strategy, rounds={"total": 3, "min_clients": 2})
    for _ in range(3):
        folders = two.run_round(*BOTH)
    participant, nap, layout = two.members["aster"], limited_sleep(500), layout_of(folders["aster"])
    while not isinstance(brief := participant.session.api.current_round(two.federation_id), FinishedBrief):
        nap(0)
    finish(participant, brief)
    final = read_served((participant.workspace.home / FINAL_WEIGHTS).read_bytes(), layout)
    assert final.manifest.fold_from == 1
    added = read_served(participant.session.api.weights(two.federation_id, 4).body, layout)
    expected = apply_weights(newest_base_delta(participant.workspace.rounds, before=4), added)
    for module, change in apply_weights(BaseDelta(1, {}), final).added.items():
        expected_change = expected.added[module]
        np.testing.assert_allclose(change.B @ change.A, expected_change.B @ expected_change.A, atol=1e-5)
    for folder in participant.workspace.rounds.newest_first():
        folder.forget(FOLD)
    with adapter_of_round(participant.trainer.silo, participant.workspace.home, None, "kept") as (adapter, _):
        assert adapter.state().keys() == layout.keys()


@pytest.mark.slow
@methods
def test_agents_continue_under_restored_coordinator(
    fresh_database: Callable[[str], str],
    serve: Callable[..., Served],
    silo: Silo,
    tmp_path: Path,
    strategy: str,
) -> None:
    url = fresh_database("sqlite")
    file, backup = Path(url.removeprefix("sqlite:///")), tmp_path / "backup.db"
    first = serve(url, tick_seconds=0.05, retry_seconds=0.2)
    with ExitStack() as stack:
        two = Pair(first, silo, tmp_path, stack, **(PLAN | {"strategy": {"name": strategy}}))
        for number in range(4):
            if number == 3:
                with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(backup)) as copy:
                    source.backup(copy)
            two.run_round(*BOTH)
        first.stop()
        for beside in ("-journal", "-wal", "-shm"):
            Path(f"{file}{beside}").unlink(missing_ok=True)
        shutil.copy(backup, file)
        serve(url, tick_seconds=0.05, retry_seconds=0.2, port=int(first.url.rpartition(":")[2]))
        for participant in two.members.values():
            accept(
                compare_state(
                    participant.session.manifests, participant.session.pins, participant.session.api
                ),
                participant.session.manifests,
                participant.session.pins,
                participant.session.api,
            )
            newest = newest_base_delta(participant.workspace.rounds, before=99)
            assert (newest.round, bool(newest.added)) == (0, True)  # to be exported, not to be added to
            with adapter_of_round(participant.trainer.silo, participant.workspace.home, None, "local") as (
                adapter,
                _,
            ):
                assert adapter.state()
        for _ in range(2):
            folders = two.run_round(*BOTH)
            assert_alike(folders["aster"], folders["birch"])
        assert folders["aster"].number == 5
