"""A whole agent in this process: two quick rounds, and their failures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from client_agent.daemon import prepare, run
from client_agent.errors import CoordinatorRefused, Stopped
from client_agent.rounds.progress_report import ProgressReports
from client_agent.rounds.steps import take_part
from client_agent.storage.round_folder import CLOSED, PARTIAL, RECEIPT, SCORES_SENT, UPDATE, WEIGHTS
from client_agent.training.loop import Step
from client_agent.training.silo import Silo
from tests.scene.agents import QUICK, Enrolled, alone_plan, checked, enrolled, limited_sleep, next_brief
from tests.scene.coordinator import Served, start
from tests.scene.disks import fill, mounted
from tests.scene.silo_config import HELD_OUT, config
from tests.scene.waiting import wait_until
from tests.unit.client_agent.bad_lines import DelayedUpdates, LostReceipts


@pytest.mark.parametrize("kind", ["pq", "lora"])
@pytest.mark.parametrize("strategy", ["fedmosaic", "fedavg"])
def test_agent_takes_part_until_the_federation_is_finished(
    kind: str, strategy: str, served: Served, started: Enrolled
) -> None:
    adapter = {"kind": kind, "rank": 4, "roles": ["v", "down"]}
    participant = started(**alone_plan(adapter=adapter, strategy={"name": strategy}))
    run(participant, limited_sleep(500))
    rounds = served.rounds(participant.session.federation_id)
    assert [r["state"] for r in rounds] == ["published", "published"]
    for scores in (r["clients"][0]["scores"] for r in rounds):
        assert scores["served"]["loss"]["count"] == scores["trained"]["loss"]["count"] == HELD_OUT
    assert (participant.workspace.home / "final_weights.safetensors").is_file()


@pytest.mark.slow
def test_refused_update_is_skipped_for_next_round(served: Served, started: Enrolled) -> None:
    limits = {"max_norm": 1e-9}
    rounds = {"total": 1, "min_clients": 1, "collect_seconds": 6.0}
    participant = started(**alone_plan(limits=limits, rounds=rounds))

    def sleep(_: float) -> None:
        if any(
            folder.number > 1 and folder.has(CLOSED) for folder in participant.workspace.rounds.newest_first()
        ):
            raise Stopped
        time.sleep(0.02)

    with pytest.raises(Stopped):
        run(participant, sleep)
    closed = next(folder for folder in participant.workspace.rounds.newest_first() if folder.has(CLOSED))
    assert closed.number > 1, "it must have gone on to another round"
    assert closed.has(UPDATE)
    assert not closed.has(RECEIPT)
    assert b"norm-exceeded" in closed.read(CLOSED)
    assert served.rounds(participant.session.federation_id)[0]["clients"][0]["scores"] is not None


def test_undelivered_update_is_resent_unchanged_after_restart(served: Served, started: Enrolled) -> None:
    pushed: list[bytes] = []

    class Lossy(httpx.HTTPTransport):
        """Loses the answer to the first update, as a cut connection does, and everything after it."""

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            if request.url.path.endswith("/update"):
                pushed.append(request.read())
                if len(pushed) == 1:
                    raise Stopped
            return answer

    participant = started(Lossy(), **alone_plan(rounds={"total": 1, "min_clients": 1}))
    with pytest.raises(Stopped):
        run(participant, limited_sleep(50))
    assert not participant.workspace.rounds.open(1).has(RECEIPT)
    run(participant, limited_sleep(500))
    assert participant.workspace.rounds.open(1).has(SCORES_SENT)
    assert len(pushed) == 2
    assert pushed[0] == pushed[1]
    assert served.rounds(participant.session.federation_id)[0]["counts"]["arrived"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_late", [True, False])
def test_undeliverable_update_is_dropped_with_its_round(
    served: Served, started: Enrolled, caplog: pytest.LogCaptureFixture, is_late: bool
) -> None:
    rounds = {"total": 1, "min_clients": 1, "collect_seconds": 6.0}
    participant = started(DelayedUpdates(is_late), **alone_plan(rounds=rounds))
    run(participant, limited_sleep(500))
    first = participant.workspace.rounds.open(1)
    assert (first.has(UPDATE), first.has(RECEIPT)) == (True, False)
    assert json.loads(first.read(CLOSED)) == {"reason": "round-closed"}
    assert "round 1: update not counted" in caplog.text
    assert ("proxy_request_buffering" in caplog.text) == is_late
    states = [r["state"] for r in served.rounds(participant.session.federation_id)]
    assert (states[0], states[-1]) == ("abandoned", "published")
    assert (participant.workspace.home / "final_weights.safetensors").is_file()


def test_counted_update_without_receipt_is_logged_as_counted(
    served: Served, started: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    participant = started(LostReceipts(), **alone_plan(rounds={"total": 1, "min_clients": 1}))
    run(participant, limited_sleep(500))
    first = participant.workspace.rounds.open(1)
    assert json.loads(first.read(CLOSED)) == {"reason": "receipt-lost"}
    assert "round 1: receipt lost (the update was counted)" in caplog.text
    assert "update not counted" not in caplog.text
    assert served.rounds(participant.session.federation_id)[0]["counts"]["arrived"] == 1
    assert (participant.workspace.home / "final_weights.safetensors").is_file()


def test_proxy_error_page_does_not_end_the_agent(served: Served, started: Enrolled) -> None:
    pages = iter([404, 403, 401, 502])

    class Proxy(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            status = next(pages, None) if request.url.path.endswith("/current") else None
            return httpx.Response(status, text="no backend") if status else super().handle_request(request)

    participant = started(Proxy(), **alone_plan(rounds={"total": 1, "min_clients": 1}))
    run(participant, limited_sleep(500))
    assert served.rounds(participant.session.federation_id)[0]["state"] == "published"


def test_revoked_key_ends_the_agent(served: Served, participant: Enrolled) -> None:
    federation_id = served.federation(**alone_plan())
    agent = participant(federation_id)
    served.admin.delete(f"/v1/federations/{federation_id}/clients/{agent.session.client_id}")
    with pytest.raises(CoordinatorRefused, match="key-revoked"):
        run(agent, limited_sleep(5))


@pytest.fixture
def at_first_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[int]]:
    """Do something at the first step, and wait until the agent knows; return the steps that are taken."""
    monkeypatch.setitem(ProgressReports.__init__.__kwdefaults__, "seconds", 0.01)
    report = ProgressReports.__call__

    def patch(act: Callable[[], object]) -> list[int]:
        steps: list[int] = []

        def report_and_wait(reports: ProgressReports, step: Step, done: int, total: int) -> None:
            steps.append(step.number)
            if len(steps) == 1:
                act()
            report(reports, step, done, total)
            if len(steps) == 1:
                wait_until(lambda: reports.reason is not None, event="the answer to a report")

        monkeypatch.setattr(ProgressReports, "__call__", report_and_wait)
        return steps

    return patch


def test_revoked_key_ends_the_training_in_progress(
    served: Served, started: Enrolled, at_first_step: Callable[[Callable[[], object]], list[int]]
) -> None:
    agent = started(**alone_plan(training=QUICK | {"steps": 6}))
    agent.trainer.reports_progress = True
    path = f"/v1/federations/{agent.session.federation_id}/clients/{agent.session.client_id}"
    steps = at_first_step(lambda: served.admin.delete(path))
    with pytest.raises(CoordinatorRefused, match="key-revoked"):
        run(agent, limited_sleep(50))
    assert steps == [1]
    folder = agent.workspace.rounds.open(1)
    assert (folder.has(WEIGHTS), folder.has(PARTIAL), folder.finished) == (True, True, False)


def test_end_of_a_round_ends_its_training(
    served: Served,
    started: Enrolled,
    at_first_step: Callable[[Callable[[], object]], list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = started(**alone_plan(training=QUICK | {"steps": 6}))
    agent.trainer.reports_progress = True
    path = f"/v1/federations/{agent.session.federation_id}/finish"
    steps = at_first_step(lambda: served.admin.post(path).raise_for_status())
    run(agent, limited_sleep(500))
    assert "round 1: update not counted (the round ended during the training)" in caplog.text
    assert "federation finished" in caplog.text
    assert agent.workspace.rounds.open(1).finished
    assert steps == [1]


def test_preparation_without_alignment_needs_no_pack(started: Enrolled) -> None:
    participant = started(**alone_plan())
    assert prepare(participant, limited_sleep(5)) is None


def test_check_passes_and_names_the_next_step(served: Served, tmp_path: Path) -> None:
    details = checked(config(tmp_path, url=served.url))
    assert all(f.passed for f in details.values())
    assert f"{HELD_OUT} held out" in details["data"].detail
    assert "tessera agent enrol" in details["identity"].detail


@pytest.mark.parametrize(
    ("changes", "subject", "detail"),
    [
        ({"model": "./nowhere"}, "model", "nowhere"),
        ({"device": "cuda:99"}, "device", "cuda:99"),
        ({"train": "none.jsonl"}, "data", "none.jsonl"),
        ({"url": "http://127.0.0.1:1"}, "connection", "did not answer"),
    ],
)
def test_check_reports_faults_and_continues(
    changes: dict[str, str], subject: str, detail: str, tmp_path: Path, served: Served
) -> None:
    details = checked(config(tmp_path, **({"url": served.url} | changes)))
    assert len(details) == 17
    assert not details[subject].passed
    assert detail in details[subject].detail


class Switched(httpx.HTTPTransport):
    """Passes requests to another port from a request of a path on, while there is one."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.port, self.switched = path, None, False  # type: tuple[str, int | None, bool]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.switched |= request.url.path.endswith(self.path)
        if self.port is not None and self.switched:
            request.url = request.url.copy_with(port=self.port)
        return super().handle_request(request)


@pytest.mark.parametrize("path", ["/v1/hello", "/rounds/current", "/update"])
def test_agent_waits_while_another_coordinator_answers(
    path: str,
    served: Served,
    started: Enrolled,
    fresh_database: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    line, waits = Switched(path), []
    participant = started(line, **alone_plan(rounds={"total": 1, "min_clients": 1}))
    stranger = start(fresh_database("sqlite"), signing_key=43 * "A")
    line.port = httpx.URL(stranger.url).port

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            line.port = None
        time.sleep(0.02)

    try:
        run(participant, sleep)
    finally:
        stranger.stop()
    assert "another coordinator answers at" in caplog.text
    assert served.rounds(participant.session.federation_id)[0]["state"] == "published"


def test_update_of_a_copied_folder_is_explained(
    started: Enrolled, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = started(**alone_plan(rounds={"total": 1, "min_clients": 1}))
    brief = next_brief(participant)

    def refuse(*_: object) -> None:
        raise CoordinatorRefused(409, "upload-conflict", "Different content was accepted before", "/update")

    monkeypatch.setattr(participant.session.api, "push_update", refuse)
    take_part(participant, brief)
    assert "a copy of the agent's folder runs elsewhere" in caplog.text


def test_full_disk_in_a_round_is_waited_for(
    served: Served, silo: Silo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "disk", "size=64m") as disk, ExitStack() as stack:
        federation_id = served.federation(**alone_plan(rounds={"total": 1, "min_clients": 1}))
        participant = enrolled(served, federation_id, silo, disk / "state", stack)
        served.start_federation(federation_id)
        filled: list[Path] = []

        def fill_once() -> bool:
            if not filled:
                filled.append(fill(disk))
            return False

        def sleep(seconds: float) -> None:
            for file in filled:
                file.unlink(missing_ok=True)
            time.sleep(0.02)

        participant.trainer.stop = fill_once
        run(participant, sleep)
        assert "no space left on device" in caplog.text
        assert "the disk is full" in caplog.text
        assert served.rounds(federation_id)[0]["clients"][0]["state"] == "arrived"
