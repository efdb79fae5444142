"""Accept a coordinator that was restored from a backup older than the silo's last round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from client_agent.daemon import run
from client_agent.errors import (
    CoordinatorNotTrusted,
    ManifestRefused,
    NothingWasRestored,
    NotInTheBackup,
    Stopped,
)
from client_agent.identity import backup_recovery
from client_agent.identity.backup_recovery import Offer, accept, compare_state
from client_agent.identity.manifests import Manifests
from client_agent.identity.membership import read_key
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.storage.archive import set_aside
from client_agent.storage.round_folder import (
    CLOSED,
    MANIFEST,
    RECEIPT,
    SKETCH,
    TRAINED,
    UPDATE,
    RoundFolders,
)
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from coordinator.db.backup import copy
from schemas.identity.documents import hash_of
from schemas.messages.rounds import RoundBrief
from tests.scene.agents import alone_plan, limited_sleep, next_brief
from tests.scene.coordinator import Served, coordinator_fixture

pytestmark = pytest.mark.slow
Serve, Enrolled = Callable[..., Served], Callable[..., Participant]


class BackedUpFederation:
    """One silo in a federation of four rounds, whose coordinator can be backed up and restored."""

    def __init__(
        self, served: Served, participant: Enrolled, serve: Serve, folder: Path, opened: ExitStack
    ) -> None:
        self.served, self.serve, self.backup = served, serve, folder / "backup.db"
        self.federation_id = served.federation(
            **alone_plan(rounds={"total": 4, "min_clients": 1}, privacy={"roster_policy": "tofu"})
        )
        self.enrol, self._opened = participant, opened

    def start(self, transport: httpx.BaseTransport | None = None) -> None:
        self.participant = self.enrol(self.federation_id, transport)
        self.served.start_federation(self.federation_id)

    def run_round(self) -> int:
        brief = next_brief(self.participant)
        assert take_part(self.participant, brief)
        return brief.round

    def back_up(self) -> None:
        copy(self.served.database, self.backup, progress=lambda *_: None)

    def exchange(self) -> None:
        self.served.stop()
        options: dict[str, float] = {"tick_seconds": 0.05, "retry_seconds": 0.05, "polls_per_second": 100}
        port = httpx.URL(self.served.url).port
        self.served = self.serve(f"sqlite:///{self.backup}", port=port, **options)

    def restore(self) -> None:
        self.exchange()
        key, server_key = read_key(self.participant.workspace.folder), self.participant.session.server_key
        api = CoordinatorApi(
            self.served.url, key=key, server_key=server_key, deadline_seconds=20, sleep=lambda _: None
        )
        self.participant.session.api = self._opened.enter_context(api)

    def compare_state(self) -> Offer:
        return compare_state(self.participant.session.manifests, {}, self.participant.session.api)

    def accept(self) -> None:
        accept(self.compare_state(), self.participant.session.manifests, {}, self.participant.session.api)

    @property
    def trained(self) -> bytes:
        rounds = self.participant.workspace.rounds
        return next(f for f in rounds.newest_first() if f.has(TRAINED)).read(TRAINED)


served = coordinator_fixture("sqlite", tick_seconds=0.05, retry_seconds=0.05)


@pytest.fixture
def scene(
    served: Served, participant: Enrolled, serve: Serve, tmp_path: Path
) -> Iterator[BackedUpFederation]:
    with ExitStack() as opened:
        yield BackedUpFederation(served, participant, serve, tmp_path, opened)


def test_accepted_restored_coordinator_continues_from_silos_adapter(scene: BackedUpFederation) -> None:
    scene.start()
    scene.run_round()
    scene.back_up()
    assert [scene.run_round(), scene.run_round()] == [2, 3]
    adapter, last_accepted = scene.trained, scene.participant.session.manifests.last_accepted()
    scene.restore()
    for _ in range(2):  # running it again changes nothing
        with pytest.raises(ManifestRefused, match="tessera agent accept-restored"):
            run(scene.participant, limited_sleep(500))
    offer = scene.compare_state()
    assert (offer.accepted.manifest.round, offer.open_round) == (3, 2)
    assert offer.offered is not None
    assert offer.offered.manifest.round == 1
    assert hash_of(last_accepted or {}) in str(offer)
    assert hash_of(offer.offered.document) in str(offer)
    scene.accept()
    before_it = scene.participant.workspace.rounds.newest_with(TRAINED, before=2)
    assert before_it is not None
    assert before_it.read(TRAINED) == adapter
    assert (scene.participant.workspace.home / "earlier" / f"{MANIFEST}-1").is_file()
    run(scene.participant, limited_sleep(500))
    assert [r["state"] for r in scene.served.rounds(scene.federation_id)] == ["published"] * 4
    assert (scene.participant.workspace.home / "final_weights.safetensors").is_file()
    with pytest.raises(NothingWasRestored, match="nothing was lost"):
        scene.compare_state()


def test_backup_from_before_first_round_is_accepted(scene: BackedUpFederation) -> None:
    scene.start()
    scene.back_up()
    scene.run_round()
    scene.run_round()
    adapter = scene.trained
    scene.restore()
    offer = scene.compare_state()
    assert offer.offered is None
    assert "no round" in str(offer)
    scene.accept()
    set_aside_other_clients_files(scene)
    assert scene.trained == adapter
    run(scene.participant, limited_sleep(500))
    assert [r["state"] for r in scene.served.rounds(scene.federation_id)] == ["published"] * 4


def test_alignment_pack_missing_in_backup_is_redelivered(scene: BackedUpFederation, silo: Silo) -> None:
    alignment = {"pivot": silo.base.slug, "frames": "random"}
    aligned_plan = alone_plan(rounds={"total": 2, "min_clients": 1}, alignment=alignment)
    scene.federation_id = scene.served.federation(**aligned_plan)
    scene.start()
    scene.back_up()
    scene.run_round()
    (stored,) = packs(scene)
    scene.restore()
    assert packs(scene) == []
    scene.accept()
    run(scene.participant, limited_sleep(500))
    assert packs(scene) == [stored]
    assert [r["state"] for r in scene.served.rounds(scene.federation_id)] == ["published"] * 2


def test_sketch_released_at_join_survives_a_restore(tmp_path: Path) -> None:
    rounds = RoundFolders(tmp_path / "rounds")
    rounds.open(3).write(SKETCH, b"released")
    backup_recovery._carry_over(rounds, Manifests(tmp_path, "fed", "cli", "key"), before=2)
    last = rounds.newest_with(SKETCH, before=2)
    assert last is not None
    assert (last.number, last.read(SKETCH), last.finished) == (1, b"released", True)
    assert rounds.newest_with(TRAINED, before=2) is None  # it is a newcomer as before


def packs(scene: BackedUpFederation) -> list[str]:
    listed = scene.served.admin.get(f"/v1/federations/{scene.federation_id}/alignments").json()["items"]
    return [pack["digest"] for pack in listed]


def set_aside_other_clients_files(scene: BackedUpFederation) -> None:
    participant = scene.participant
    set_aside(
        participant.workspace.home,
        federation_id=participant.session.federation_id,
        client_id=participant.session.client_id,
        server_key=participant.session.server_key,
    )


def test_coordinator_that_continued_without_client_is_accepted(scene: BackedUpFederation) -> None:
    """The restored coordinator has issued a manifest of the refused round."""
    scene.start()
    scene.run_round()
    scene.back_up()
    scene.run_round()
    scene.restore()
    assert next_brief(scene.participant).round == 2
    joined = scene.participant.session.api.join(scene.federation_id, 2, None)
    offer = scene.compare_state()
    assert offer.offered is not None
    assert offer.offered.document == joined.manifest
    scene.accept()
    assert [scene.run_round(), scene.run_round()] == [2, 3]


def test_update_missing_in_backup_is_resent_unchanged(scene: BackedUpFederation) -> None:
    class BackedUp(httpx.HTTPTransport):
        """A backup is made between the joining of a round and the update."""

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/rounds/2/update"):
                scene.back_up()
            return super().handle_request(request)

    scene.start(BackedUp())
    assert [scene.run_round(), scene.run_round()] == [1, 2]
    folder = scene.participant.workspace.rounds.open(2)
    sent = folder.read(UPDATE)
    scene.restore()
    with pytest.raises(NothingWasRestored):
        scene.compare_state()
    assert scene.run_round() == 2
    assert folder.read(UPDATE) == sent
    assert folder.has(RECEIPT)
    assert not folder.has(CLOSED)
    run(scene.participant, limited_sleep(500))
    assert [r["counts"]["arrived"] for r in scene.served.rounds(scene.federation_id)] == [1] * 4


def test_interrupted_acceptance_refuses_rounds_and_is_repeatable(
    scene: BackedUpFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.start()
    scene.run_round()
    scene.back_up()
    scene.run_round()
    scene.run_round()
    adapter = scene.trained
    scene.restore()
    steps = ("move_aside", "keep_copy", "write_durably", "_copy", "fsync_folder")
    for interrupted in steps:
        with monkeypatch.context() as patch:
            patch.setattr(backup_recovery, interrupted, _stop)
            with pytest.raises(Stopped):
                scene.accept()
        brief = scene.participant.session.api.current_round(scene.federation_id)
        assert isinstance(brief, RoundBrief)
        with pytest.raises(ManifestRefused, match="round 3 was joined before"):
            take_part(scene.participant, brief)
    scene.accept()
    assert scene.trained == adapter
    assert scene.run_round() == 2


def _stop(*_: object, **__: object) -> None:
    raise Stopped


def test_acceptance_requires_the_pinned_coordinator_key(scene: BackedUpFederation) -> None:
    scene.start()
    scene.run_round()
    offered = scene.participant.session.manifests
    stranger = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
    stranger_manifests = type(offered)(offered.folder, offered.federation, offered.client, stranger)
    with pytest.raises((CoordinatorNotTrusted, ManifestRefused)):
        compare_state(stranger_manifests, {}, scene.participant.session.api)


def test_backup_from_before_enrolment_requires_enrolling_again(scene: BackedUpFederation) -> None:
    scene.back_up()
    scene.start()
    with pytest.raises(NothingWasRestored, match="joined no round"):
        scene.compare_state()
    scene.run_round()
    scene.restore()
    with pytest.raises(NotInTheBackup, match="enrol again"):
        scene.compare_state()


def test_members_with_changed_keys_are_listed(scene: BackedUpFederation) -> None:
    scene.start()
    scene.back_up()
    scene.served.enrol(scene.federation_id, "birch")
    scene.run_round()
    scene.restore()
    scene.served.enrol(scene.federation_id, "birch")
    scene.participant.session.api.join(scene.federation_id, 1, None)
    offer = scene.compare_state()
    assert offer.changed_members == ["birch"]
    assert "members with new keys:  birch" in str(offer)
