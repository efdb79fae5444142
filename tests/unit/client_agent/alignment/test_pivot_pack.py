"""The pivot's pack: built by a client of the pivot's base model, awaited by the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.alignment import module_selection, pack_exchange
from client_agent.alignment.pack import Pack
from client_agent.alignment.pivot_wait import PivotWait
from client_agent.daemon import prepare
from client_agent.errors import CoordinatorRefused, PivotPackAwaited, Stopped
from client_agent.model.loading import base_model_slug
from client_agent.rounds.participant import Participant
from client_agent.settings import read_settings
from client_agent.training.silo import open_silo
from schemas.wire.digests import digest_of
from tests.scene.agents import enrolled
from tests.scene.coordinator import Served
from tests.scene.silo_config import config, config_beside
from tests.unit.client_agent.alignment.anchors import anchors_for
from tests.unit.client_agent.offline import Machines

ANCHORS = {"anchors": [anchor.model_dump() for anchor in anchors_for()]}


@dataclass
class Federation:
    """A running federation of two base models, and its agents' folder."""

    served: Served
    id: str
    pivot: str
    large: str
    folder: Path
    stack: ExitStack

    def join(self, name: str, model: str) -> Participant:
        folder = self.folder / name
        folder.mkdir()
        silo = open_silo(read_settings(config(folder, model=model, pivot_model=self.pivot)))
        return enrolled(self.served, self.id, silo, folder, self.stack, name=name)

    @property
    def packs(self) -> dict[str, str]:
        """The digests of the stored packs, by base model."""
        listed = self.served.admin.get(f"/v1/federations/{self.id}/alignments").json()["items"]
        return {pack["base_model"]: pack["digest"] for pack in listed}


@pytest.fixture
def federation(
    served: Served, saved_model: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Federation]]:
    monkeypatch.setattr(module_selection, "FITTING_TASKS", 8)
    monkeypatch.setattr(module_selection, "HELD_OUT_TASKS", 3)
    pivot, large = saved_model(name="pivot"), saved_model(name="other", hidden_size=48, seed=1)

    with ExitStack() as stack:

        def start(**alignment: object) -> Federation:
            federation_id = served.federation(
                strategy={"name": "fedmosaic"},
                adapter={"rank": 4, "blocks": 2, "roles": ["v", "down"]},
                rounds={"total": 1, "min_clients": 2},
                alignment={"pivot": base_model_slug(pivot), "anchors": 96} | alignment,
            )
            path = f"/v1/federations/{federation_id}"
            assert served.admin.put(f"{path}/anchors", json=ANCHORS).is_success
            assert served.admin.post(f"{path}/start").is_success
            return Federation(served, federation_id, pivot, large, tmp_path, stack)

        yield start


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the agents' log lines about packs."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("client_agent.alignment")]


def built(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The base models whose packs were built, in order."""
    before = "alignment pack: building ("
    return [line[len(before) : -1] for line in lines(caplog) if line.startswith(before)]


@pytest.mark.slow
def test_agent_awaits_pivots_pack_and_builds_its_own(
    federation: Callable[..., Federation], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = federation()
    waiting, pivotal = running.join("other", running.large), running.join("pivotal", running.pivot)
    looks: list[float] = []

    def meanwhile(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            assert running.packs == {}
            assert built(caplog) == []
            prepare(pivotal)

    digest = prepare(waiting, meanwhile)
    slugs = [base_model_slug(running.pivot), base_model_slug(running.large)]
    assert built(caplog) == slugs
    assert [*running.packs] == sorted(slugs)
    assert running.packs[slugs[1]] == digest
    assert len(looks) == 3
    assert f"the alignment pack of the pivot {slugs[0]} is not stored yet" in caplog.text
    assert any(line.startswith("the pivot's pack is stored, after ") for line in lines(caplog))


def test_waiting_agent_can_be_stopped(federation: Callable[..., Federation]) -> None:
    running = federation()
    waiting = running.join("other", running.large)

    def stop(_: float) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        prepare(waiting, stop)
    assert running.packs == {}


@pytest.mark.parametrize("allowed", [False, True])
def test_absent_pivot_client_is_replaced_if_plan_allows(
    allowed: bool, federation: Callable[..., Federation], caplog: pytest.LogCaptureFixture
) -> None:
    running = federation(pivot_pack_by_any_client=allowed)
    peer, looks, now = running.join("other", running.large), [], [0.0]
    peer = replace(
        peer, trainer=replace(peer.trainer, pivot_wait=PivotWait(patience_seconds=60, clock=lambda: now[0]))
    )

    def meanwhile(_: float) -> None:
        looks.append([*running.packs])
        now[0] += 25.0
        if len(looks) > 5:
            raise Stopped

    if allowed:
        prepare(peer, meanwhile)
        assert looks == [[]] * 3  # at 0, 25 and 50 s
        assert running.packs.keys() == {base_model_slug(running.pivot), base_model_slug(running.large)}
        return
    with pytest.raises(Stopped):
        prepare(peer, meanwhile)
    assert running.packs == {}
    assert "tessera agent make-pivot-pack" in lines(caplog)[-1]
    assert "since 75 s" in lines(caplog)[-2]


def call_during_build(slow: Participant, meanwhile: Callable[[], str | None]) -> list[str | None]:
    """Call a function at the first progress of a build; return the list that gets its result."""
    results: list[str | None] = []

    def stop() -> bool:  # asked at every progress
        if not results:
            results.append("")
            results[0] = meanwhile()
        return False

    slow.trainer.stop = stop
    return results


def test_pack_stored_during_a_build_is_used_instead(
    federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = federation()
    slow, fast = running.join("slow", running.pivot), running.join("fast", running.pivot)
    monkeypatch.setattr(pack_exchange, "_LOOK_SECONDS", 0.0)
    digests = call_during_build(slow, lambda: prepare(fast))
    assert prepare(slow) == digests[0]
    assert [*running.packs.values()] == digests
    assert "another client's is stored and used instead" in caplog.text
    assert not [*slow.workspace.home.glob("made-*")]


def test_pack_is_redelivered_after_the_stored_one_ends(
    federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = federation()
    slow, fast = running.join("slow", running.pivot), running.join("fast", running.pivot)
    monkeypatch.setattr(pack_exchange, "_LOOK_SECONDS", 1e9)  # it does not see the other's pack as it builds
    build = pack_exchange.pivot_pack

    def rounded_otherwise(*arguments: Any, **options: Any) -> Pack:  # as another processor would
        pack = build(*arguments, **options)
        errors = {name: error.model_copy(update={"a": 0.125}) for name, error in pack.manifest.errors.items()}
        return replace(pack, manifest=pack.manifest.model_copy(update={"errors": errors}))

    def prepare_fast() -> str | None:
        with monkeypatch.context() as patched:
            patched.setattr(pack_exchange, "pivot_pack", rounded_otherwise)
            return prepare(fast)

    others = call_during_build(slow, prepare_fast)
    deliver = slow.session.api.put_pack

    def refused_and_then_free(federation_id: str, base_model: str, body: bytes) -> object:
        try:
            return deliver(federation_id, base_model, body)
        except CoordinatorRefused:  # the other client is revoked before the agent asks for its pack
            client = fast.session.client_id
            revoked = running.served.admin.delete(f"/v1/federations/{running.id}/clients/{client}")
            assert revoked.status_code == 204
            raise

    monkeypatch.setattr(slow.session.api, "put_pack", refused_and_then_free)
    first_pack = prepare(slow)
    assert first_pack != others[0]
    assert [*running.packs.values()] == [first_pack]
    assert "the pack of another client was voided" in caplog.text


def test_reminders_slow_down_then_name_operators_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now, awaited = [0.0], PivotPackAwaited("fed_1", "pivot-1")
    wait = PivotWait(patience_seconds=1800, clock=lambda: now[0])
    lines = []
    for second in range(0, 3600, 5):
        now[0] = float(second)
        before = len(caplog.records)
        wait.goes_on(awaited)
        lines += [second] * (len(caplog.records) > before)
    assert lines == [0, 60, 120, 240, 480, 960, 1560, 2160, 2760, 3360]
    assert caplog.records[0].levelno == caplog.records[3].levelno == logging.INFO
    assert "since 4 min" in caplog.text
    assert (caplog.records[-1].levelno, wait.is_over) == (logging.WARNING, True)
    assert "make-pivot-pack fed_1" in caplog.records[-1].getMessage()


@pytest.mark.slow
def test_packs_are_built_offline_between_syncs(
    federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = federation()

    def machines(name: str, model: str) -> Machines:
        participant = running.join(name, model)
        home = running.folder / name
        file = config_beside(home, url=running.served.url, model=model, pivot_model=running.pivot)
        return Machines(file, participant.trainer.silo, monkeypatch)

    pivotal, aligned_agent = machines("pivotal", running.pivot), machines("other", running.large)
    assert aligned_agent.sync().next == "work"
    assert aligned_agent.work() == "prepare"
    waiting = aligned_agent.sync(waits=False)
    assert waiting.next == "nothing"
    assert "is not stored yet" in waiting.reason
    assert aligned_agent.pending() is None
    for silo in (pivotal, aligned_agent):
        assert silo.sync().next == "work"
        assert silo.work() == "prepare"
        assert silo.sync().next == "work"
        assert silo.pending() is not None
    assert len(running.packs) == 2
    (pack,) = (running.folder / "other").glob("*/pack.safetensors")
    assert digest_of(pack.read_bytes()) == running.packs[base_model_slug(running.large)]
