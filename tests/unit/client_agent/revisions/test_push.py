"""Revisions that an agent exports after its rounds, with a coordinator and a model."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.adapters.base import Adapter
from client_agent.daemon import _serve_last, run
from client_agent.errors import AdapterUnreadable, RevisionMissing, ServedRevisionRefused, Stopped
from client_agent.revisions import owner_command
from client_agent.revisions.owner_command import HookFailed, RunningCommand, run_hook
from client_agent.revisions.push import Push, Serving, revision_adapter
from client_agent.revisions.served_folder import ServedFolder
from client_agent.revisions.store import RevisionKeeper, RevisionStore
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.settings import AgentSettings, read_settings
from client_agent.training.silo import Silo
from tests.scene.agent_commands import tessera
from tests.scene.agents import QUICK, Enrolled, enrolled, limited_sleep, next_brief
from tests.scene.coordinator import Served
from tests.scene.disks import fill, mounted
from tests.scene.silo_config import config_beside
from tests.scene.waiting import wait_until
from tests.unit.client_agent.revisions.stored_rounds import add_round, export

PLAN: dict[str, Any] = {
    "strategy": {"name": "fedavg"},
    "adapter": {"kind": "lora", "rank": 2, "scale": 4.0, "roles": ["v"]},
    "training": QUICK,
    "wire": {"recipe": "dense"},
    "rounds": {"total": 4, "min_clients": 1},
}
Settled = Callable[..., AgentSettings]

# peft 0.21 reads the old name of transformers 5.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture
def settled(served: Served, tmp_path: Path) -> Settled:
    """Write a silo.toml with an [export] table into the agent's folder, and read it."""

    def write(*lines: str, **options: str) -> AgentSettings:
        file = config_beside(tmp_path, url=served.url)
        table = ['after_round = "peft"', *lines] if lines or not options else lines
        text = "".join(f"{name} = {value}\n" for name, value in options.items())
        body = file.read_text() + text + "[export]\n" + "\n".join(table) + "\n"
        file.write_text(body)
        return read_settings(file)

    return write


def exporting(participant: Participant, settings: AgentSettings) -> Participant:
    return replace(participant, keep_revisions=RevisionKeeper(settings, "aster"))


def store_of(settings: AgentSettings) -> RevisionStore:
    return RevisionStore(settings.folder)


def served_by(settings: AgentSettings) -> ServedFolder:
    return ServedFolder(settings.export.folder)


def content(folder: ServedFolder, label: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder.path / label).iterdir()}


def awaited() -> None:
    raise AssertionError("nobody else has the lock")


def no_silo() -> Silo:
    raise AssertionError("the model is not needed")


def no_model() -> Any:
    """Open no model, for an export that needs none."""


def test_each_round_is_exported_and_linked(settled: Settled, started: Enrolled) -> None:
    settings = settled()
    participant = exporting(started(**PLAN), settings)
    folder, firsts = served_by(settings), {}
    for number in (1, 2):
        take_part(participant, next_brief(participant))
        assert folder.current() == f"aster@{number}"
        if number == 1:
            firsts = content(folder, "aster@1")
    assert folder.labels() == ["aster@1", "aster@2"]
    # A revision is the same for ever.
    assert content(folder, "aster@1") == firsts
    record, _ = folder.read("aster@2")
    revision = store_of(settings).find(2)
    assert (record.round, record.digest, record.format) == (2, revision.digest, "peft")
    assert record.base_model == participant.trainer.silo.base.slug
    folder.verify(record)
    assert "aster@2" in (folder.path / "current" / "README.md").read_text()
    assert not [entry for entry in folder.path.iterdir() if entry.name.startswith(".")]


def test_agents_without_an_export_keep_revisions(served: Served, settled: Settled, started: Enrolled) -> None:
    settings = settled(keep_revisions="2")
    participant = exporting(started(**PLAN | {"rounds": {"total": 2, "min_clients": 1}}), settings)
    run(participant, limited_sleep(500))
    assert [(r.number, r.variant) for r in store_of(settings).all()] == [(2, "trained"), (3, "final")]
    assert not settings.export.folder.exists()


def test_finished_agent_adds_nothing_at_its_next_start(settled: Settled, started: Enrolled) -> None:
    settings = settled()
    participant = started(**PLAN | {"rounds": {"total": 1, "min_clients": 1}})
    run(exporting(participant, settings), limited_sleep(500))
    state = sorted(path for path in settings.folder.rglob("*") if "sent" not in path.parts)
    assert served_by(settings).current() == "aster@2"
    run(exporting(participant, settings), limited_sleep(500))
    assert sorted(path for path in settings.folder.rglob("*") if "sent" not in path.parts) == state


def test_command_runs_after_the_link_moved(settled: Settled, started: Enrolled, tmp_path: Path) -> None:
    log = tmp_path / "hook.log"
    script = f"readlink $TESSERA_EXPORT_FOLDER/current >> {log}; env | grep ^TESSERA_ | sort >> {log}"
    settings = settled(f"run = {json.dumps(['sh', '-c', script])}")
    participant = exporting(started(**PLAN), settings)
    take_part(participant, next_brief(participant))
    folder = settings.export.folder.absolute()
    linked, *variables = log.read_text().splitlines()
    assert linked == "aster@1"
    expected = {
        "TESSERA_ADAPTER": "aster",
        "TESSERA_DIGEST": store_of(settings).find(1).digest,
        "TESSERA_EXPORT_FOLDER": str(folder),
        "TESSERA_REVISION": "1",
        "TESSERA_REVISION_FOLDER": str(folder / "aster@1"),
        "TESSERA_REVISION_NAME": "aster@1",
        "TESSERA_ROUND": "1",
    }
    assert {f"{name}={value}" for name, value in expected.items()} <= set(variables)
    runs = log.read_text()
    participant.keep_revisions(participant)
    exporting(participant, settings).keep_revisions(participant)
    assert log.read_text() == runs


def test_failed_command_is_reported_and_tried_again(
    settled: Settled, started: Enrolled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settled("""run = ["sh", "-c", "test -e done || { echo 'no server' >&2; exit 3; }"]""")
    participant = exporting(started(**PLAN), settings)
    take_part(participant, next_brief(participant))
    assert served_by(settings).current() == "aster@1"
    assert "sh ended with status 3: no server" in caplog.text
    shown = tessera("status", "--config", tmp_path / "silo.toml", env={"COLUMNS": "400"}).stdout
    assert "aster@1, the newest" in shown
    assert "the command of export.run of revision 1 failed; next try after" in shown
    caplog.clear()
    assert 0 < (participant.keep_revisions(participant) or 0) <= 60
    assert not caplog.records  # not before its time
    (settings.export.folder / "done").touch()
    assert exporting(participant, settings).keep_revisions(participant) is None  # at the next start
    assert Serving.read(settings.folder) == Serving(notified="aster@1")


@pytest.mark.slow
def test_last_command_is_tried_again_before_the_end(
    settled: Settled, started: Enrolled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, now, pauses = tmp_path / "hook.log", [1e9], list[float]()
    script = f"echo $TESSERA_REVISION >> {log}; test $TESSERA_REVISION != 2 || test -e done"
    settings = settled(f"run = {json.dumps(['sh', '-c', script])}")
    participant = started(**PLAN | {"rounds": {"total": 1, "min_clients": 1}})

    def started_again() -> Participant:
        keeper = RevisionKeeper(settings, "aster")
        keeper._push = Push(settings, "aster", lambda: now[0])
        return replace(participant, keep_revisions=keeper)

    def sleep(seconds: float) -> None:
        time.sleep(0.02)
        if log.exists() and "2" in log.read_text().split():  # it waits for nothing else any more
            pauses.append(seconds)
            now[0] += seconds

    run(started_again(), sleep)
    assert pauses == [60, 120, 240]
    assert log.read_text().split() == ["1", "2", "2", "2", "2"]
    assert "remove the cause that the log names" in caplog.text
    shown = tessera("status", "--config", tmp_path / "silo.toml", env={"COLUMNS": "400"}).stdout
    assert "of revision 2 failed, 4 times; `tessera agent run` tries it again" in shown
    (settings.export.folder / "done").touch()
    run(started_again(), sleep)
    assert Serving.read(settings.folder) == Serving(notified="aster@2")
    assert len(pauses) == 3


def test_command_runs_in_the_export_folder(settled: Settled, started: Enrolled, tmp_path: Path) -> None:
    script = "pwd > place; cat current/revision.json > record; ls $TESSERA_REVISION_NAME > /dev/null"
    settings = settled(f"run = {json.dumps(['sh', '-c', script])}")
    participant = exporting(started(**PLAN), settings)
    take_part(participant, next_brief(participant))
    folder = served_by(settings)
    assert (folder.path / "place").read_text().strip() == str(folder.path.resolve())
    # What it leaves there is of no revision.
    record, _ = folder.read("aster@1")
    folder.verify(record)
    assert (folder.path / "record").read_bytes() == record.to_bytes()


def test_relative_program_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "reload.sh").write_text("#!/bin/sh\npwd > place\n")
    (tmp_path / "reload.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    run_hook(("./reload.sh",), {}, 10, lambda: False, folder=tmp_path / "there")
    assert (tmp_path / "there" / "place").read_text().strip() == str((tmp_path / "there").resolve())


def test_pause_before_another_try_doubles(settled: Settled, silo: Silo, tmp_path: Path) -> None:
    settings, now, tries = settled('run = ["false"]'), [1e9], []
    export(served_by(settings), 1)
    add_round(tmp_path / "fed_1", 1)
    store = store_of(settings)
    store.add_states(tmp_path / "fed_1")
    push = Push(settings, "aster", lambda: now[0])
    for _ in range(200):
        before = Serving.read(settings.folder).failure
        push.follow(store, silo, lambda: False)
        after = Serving.read(settings.folder).failure
        assert after is not None
        if before is None or after.tries > before.tries:
            tries.append(now[0] - 1e9)
        now[0] += 60
    assert tries == [0, 60, 180, 420, 900, 1860, 3780, 7380, 10980]


def test_slow_command_is_stopped_with_its_children(tmp_path: Path) -> None:
    began = time.monotonic()
    script = f"sleep 60 & echo $! > {tmp_path}/child; echo working; wait"
    with pytest.raises(HookFailed, match=r"did not end within 0.5 s and was stopped; .*run_seconds: working"):
        run_hook(("sh", "-c", script), {}, 0.5, lambda: False)
    assert time.monotonic() - began < 10
    child = int((tmp_path / "child").read_text())
    stat = Path(f"/proc/{child}/stat")
    # Until somebody waits for it, an ended process is a zombie.
    wait_until(lambda: not stat.exists() or stat.read_text().split()[2] == "Z")


def test_command_of_a_killed_agent_is_ended(tmp_path: Path) -> None:
    script = f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 60"
    process = subprocess.Popen(("sh", "-c", script), start_new_session=True)
    wait_until((tmp_path / "pid").exists)
    command = RunningCommand(pid=process.pid, began=owner_command._beginning(process.pid))
    # Another process with its number is left alone.
    assert not command.model_copy(update={"began": "another boot 1"}).end()
    assert not command.model_copy(update={"began": None}).end()
    assert process.poll() is None
    assert command.end()
    assert process.wait() == -signal.SIGKILL
    assert not command.end()


def test_stop_of_the_agent_stops_the_command() -> None:
    with pytest.raises(Stopped):
        run_hook(("sleep", "60"), {}, 60, lambda: True)


def test_missing_program_is_named() -> None:
    with pytest.raises(HookFailed, match=r"no-such-program cannot be started .*; correct the command"):
        run_hook(("no-such-program",), {}, 1, lambda: False)


def test_command_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_AGENT_TOKEN", "secret")
    with pytest.raises(HookFailed, match="status 1: /"):
        run_hook(("sh", "-c", "echo $TESSERA_AGENT_TOKEN/; exit 1"), {}, 10, lambda: False)


def test_rollback_serves_an_older_revision(
    settled: Settled, started: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settled()
    participant = exporting(started(**PLAN), settings)
    folder, store = served_by(settings), store_of(settings)
    for _ in range(2):
        take_part(participant, next_brief(participant))
    Push(settings, "aster").roll_back(store, 1, no_silo, awaited)
    assert folder.current() == "aster@1"
    take_part(participant, next_brief(participant))
    # Training goes on from the newest state; it is exported, and not served.
    assert store.numbers() == [1, 2, 3]
    assert folder.labels() == ["aster@1", "aster@2", "aster@3"]
    assert folder.current() == "aster@1"
    assert "aster@1 stays served, as pinned by a rollback; aster@3 is exported beside it" in caplog.text
    Push(settings, "aster").roll_back(store, None, no_silo, awaited)
    assert folder.current() == "aster@3"


def test_rollback_after_a_failed_command_runs_it(settled: Settled, started: Enrolled, tmp_path: Path) -> None:
    log = tmp_path / "hook.log"
    script = f"echo $TESSERA_REVISION_NAME >> {log}; test $TESSERA_REVISION != 2"
    settings = settled(f"run = {json.dumps(['sh', '-c', script])}")
    participant = exporting(started(**PLAN), settings)
    for _ in range(2):
        take_part(participant, next_brief(participant))
    # The server may have loaded revision 2, although the command for it failed.
    Push(settings, "aster").roll_back(store_of(settings), 1, no_silo, awaited)
    assert log.read_text().split() == ["aster@1", "aster@2", "aster@1"]


def test_pruning_keeps_the_pinned_revision(settled: Settled, started: Enrolled) -> None:
    settings = settled("", keep_revisions="1")
    participant = exporting(started(**PLAN), settings)
    take_part(participant, next_brief(participant))
    Push(settings, "aster").roll_back(store_of(settings), 1, no_silo, awaited)
    for _ in range(2):
        take_part(participant, next_brief(participant))
    assert store_of(settings).numbers()[0] == 1
    assert served_by(settings).current() == "aster@1"


def raise_stale(self: ServedFolder, name: str) -> list[int]:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def test_unreadable_export_folder_stops_no_training(
    settled: Settled, started: Enrolled, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settled()
    participant = exporting(started(**PLAN), settings)
    with monkeypatch.context() as patch:
        patch.setattr(ServedFolder, "numbers", raise_stale)
        take_part(participant, next_brief(participant))
    assert "cannot be read (Stale file handle); trying again" in caplog.text
    participant.keep_revisions(participant)
    assert served_by(settings).current() == "aster@1"


def test_finished_agent_gives_up_an_unreadable_folder(
    settled: Settled, started: Enrolled, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServedFolder, "numbers", raise_stale)
    participant, pauses = exporting(started(**PLAN), settled()), list[float]()
    _serve_last(participant, pauses.append)
    assert pauses == [60] * 7
    assert "the last revision is not served" in caplog.text


def test_command_gets_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TESSERA_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "secret-value")
    run_hook(("sh", "-c", f"env > {tmp_path / 'env'}"), {}, 10, lambda: False)
    assert "secret-value" not in (tmp_path / "env").read_text()


def test_rollback_exports_a_removed_revision_again(settled: Settled, started: Enrolled) -> None:
    settings = settled()
    participant = exporting(started(**PLAN), settings)
    folder, store = served_by(settings), store_of(settings)
    for _ in range(2):
        take_part(participant, next_brief(participant))
    before = content(folder, "aster@1")
    folder.remove("aster@1")
    done = Push(settings, "aster").roll_back(store, 1, lambda: participant.trainer.silo, awaited)
    assert (folder.current(), done.record.round) == ("aster@1", 1)
    assert content(folder, "aster@1") == before
    with pytest.raises(RevisionMissing, match=r"revision 7 is not in .* which has 1, 2"):
        Push(settings, "aster").roll_back(store, 7, no_silo, awaited)


@pytest.mark.slow
def test_rollback_to_the_newest_passes_over_unexportable_ones(
    settled: Settled, started: Enrolled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settled()
    participant = exporting(started(**PLAN), settings)
    folder, store = served_by(settings), store_of(settings)
    for _ in range(2):
        take_part(participant, next_brief(participant))
    Push(settings, "aster").roll_back(store, 1, no_silo, awaited)
    folder.remove("aster@2")
    damaged = store._tensors(store.find(2))
    damaged.unlink()  # it is a link to the round's
    damaged.write_bytes(b"damaged")
    done = Push(settings, "aster").roll_back(store, None, lambda: participant.trainer.silo, awaited)
    assert (folder.current(), done.record.revision) == ("aster@1", 1)
    ((number, reason),) = done.passed_over
    assert (number, "is damaged or was replaced" in reason) == (2, True)
    assert Serving.read(settings.folder).pinned is None
    # The agent serves the same at its next start.
    exporting(participant, settings).keep_revisions(participant)
    assert folder.current() == "aster@1"
    shown = tessera("rollback", "newest", "--config", tmp_path / "silo.toml")
    assert shown.exit_code == 0, shown.output
    assert "revision 2 cannot be exported and is passed over: " in shown.stderr
    assert "aster@1 is served (round 1)" in shown.stdout

    def unexportable(*_: Any) -> None:
        raise AdapterUnreadable("too large a rank")

    folder.remove("aster@1")
    monkeypatch.setattr(Push, "_export", unexportable)
    with pytest.raises(ServedRevisionRefused, match=r"none of 2 revisions .* Revision 2: too large a rank"):
        Push(settings, "aster").roll_back(store, None, no_model, awaited)


def test_rollback_without_revisions_says_so(settled: Settled, started: Enrolled, tmp_path: Path) -> None:
    settled()
    started(**PLAN)
    refused = tessera("rollback", "newest", "--config", tmp_path / "silo.toml")
    assert refused.exit_code == 1
    assert "has no revisions; `tessera agent run` adds one after each round" in refused.output


def test_rollback_to_a_replaced_revision_is_refused(settled: Settled, tmp_path: Path) -> None:
    settings, home = settled(), tmp_path / "fed_1"
    folder, store = served_by(settings), store_of(settings)
    for number in (1, 2):
        add_round(home, number)
        export(folder, number)
    store.add_states(home)
    folder.point("aster@2")
    (folder.path / "aster@1" / "adapter_model.safetensors").write_bytes(b"others")
    with pytest.raises(ServedRevisionRefused, match="delete the folder, and `tessera agent rollback` writes"):
        Push(settings, "aster").roll_back(store, 1, no_silo, awaited)
    assert folder.current() == "aster@2"
    assert Serving.read(settings.folder).pinned is None


def test_folder_of_another_agent_is_not_taken_over(
    settled: Settled, started: Enrolled, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settled()
    folder = served_by(settings)
    export(folder, 4, name="birch")
    folder.point("birch@4")
    participant = exporting(started(**PLAN), settings)
    take_part(participant, next_brief(participant))
    assert folder.current() == "birch@4"
    assert "another agent exports there; set another export.folder" in caplog.text


@pytest.mark.slow
def test_inexact_export_is_not_served(
    settled: Settled, started: Enrolled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settled()
    participant = exporting(started(**PLAN), settings)
    take_part(participant, next_brief(participant))
    with monkeypatch.context() as patch:
        patch.setattr("client_agent.export.job.largest_difference", lambda *_: -1.0)
        take_part(participant, next_brief(participant))
    folder = served_by(settings)
    assert (folder.labels(), folder.current()) == (["aster@1"], "aster@1")
    assert store_of(settings).numbers() == [1, 2]
    assert "aster@2: the export failed and is tried again: the export has held-out loss" in caplog.text
    take_part(participant, next_brief(participant))
    assert folder.labels() == ["aster@1", "aster@2", "aster@3"]
    assert Serving.read(settings.folder).failure is None


def test_unforeseen_fault_does_not_stop_training(
    settled: Settled, started: Enrolled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settled()
    participant = exporting(started(**PLAN), settings)
    monkeypatch.setattr(Push, "_export_missing", lambda *_: 1 / 0)
    assert take_part(participant, next_brief(participant))
    assert "the export failed and is tried again: division by zero" in caplog.text
    assert "Traceback" in caplog.text


def test_full_disk_of_the_export_folder_loses_nothing(
    settled: Settled, started: Enrolled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "disk", "size=1m") as disk:
        settings = settled(f'folder = "{disk}"')
        participant = exporting(started(**PLAN), settings)
        take_part(participant, next_brief(participant))
        filler = fill(disk)
        take_part(participant, next_brief(participant))
        folder = served_by(settings)
        assert folder.current() == "aster@1"
        folder.verify(folder.read("aster@1")[0])
        assert store_of(settings).numbers() == [1, 2]
        failure = Serving.read(settings.folder).failure
        assert failure is not None
        assert failure.reason == f"the disk of {disk} is full; free space there"
        assert f"tried again: {failure.reason}" in caplog.text
        filler.unlink()
        exporting(participant, settings).keep_revisions(participant)
        assert folder.current() == "aster@2"
        assert [entry.name for entry in disk.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.slow
def test_full_disk_of_the_agent_is_waited_for(
    served: Served, settled: Settled, silo: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(tmp_path / "disk", "size=64m") as disk, ExitStack() as stack:
        settings = settled().model_copy(update={"folder": disk / "state"})
        federation_id = served.federation(**PLAN | {"rounds": {"total": 1, "min_clients": 1}})
        participant = exporting(enrolled(served, federation_id, silo, settings.folder, stack), settings)
        served.admin.post(f"/v1/federations/{federation_id}/start")
        filled: list[Path] = []
        add = RevisionStore.add_states

        def add_on_a_full_disk(*arguments: Any, **options: Any) -> Any:
            if not filled and any((settings.folder / federation_id).glob("rounds/*/scores_sent.json")):
                filled.append(fill(disk))
            return add(*arguments, **options)

        def sleep(_: float) -> None:
            for file in filled:
                file.unlink(missing_ok=True)
            time.sleep(0.02)

        monkeypatch.setattr(RevisionStore, "add_states", add_on_a_full_disk)
        run(participant, sleep)
        assert filled
        assert store_of(settings).numbers() == [1, 2]
        assert served_by(settings).current() == "aster@2"


KILLED = """
import os, signal, sys
from client_agent import AgentSettings, open_participant, run
from client_agent.revisions import push, served_folder

replace, place = os.replace, sys.argv[2]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def die_at_the_link(source, target):
    if str(target).endswith("/current"):
        die()
    replace(source, target)

if place == "seal":
    served_folder.ServedFolder.seal = die
elif place == "link":
    push.Push._point = lambda self, number, **_: number == 1 or die()
elif place == "rename":
    os.replace = die_at_the_link
elif place == "run":
    push.run_hook = die
settings = AgentSettings.from_toml(sys.argv[1])
with open_participant(settings) as participant:
    run(participant)
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["seal", "link", "rename", "run"])
def test_agent_killed_between_export_and_link_repairs_it(
    settled: Settled, started: Enrolled, tmp_path: Path, place: str
) -> None:
    settings = settled(f'run = ["sh", "-c", "echo $TESSERA_REVISION_NAME >> {tmp_path}/hook.log"]')
    participant = exporting(started(**PLAN | {"rounds": {"total": 2, "min_clients": 1}}), settings)
    take_part(participant, next_brief(participant))
    file = tmp_path / "silo.toml"
    root = Path(__file__).parents[4]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(file), place],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    folder = served_by(settings)
    assert folder.current() == ("aster@2" if place == "run" else "aster@1")
    assert folder.labels() == (["aster@1"] if place == "seal" else ["aster@1", "aster@2"])
    run(exporting(participant, settings), limited_sleep(500))
    assert folder.labels() == ["aster@1", "aster@2", "aster@3"]
    assert folder.current() == "aster@3"
    assert (tmp_path / "hook.log").read_text().splitlines() == ["aster@1", "aster@2", "aster@3"]
    assert not [entry for entry in folder.path.iterdir() if entry.name.startswith(".")]


KILLS_THE_AGENT = """
echo "$TESSERA_REVISION_NAME begins" >> hook.log
if test ! -e killed && test $TESSERA_REVISION = 2; then
    until grep -q '"pid"' ../revisions/serving.json; do sleep 0.05; done
    touch killed; echo $$ > left; kill -KILL $PPID; sleep 300
fi
echo "$TESSERA_REVISION_NAME ends" >> hook.log
"""


@pytest.mark.slow
def test_agent_killed_during_its_command_runs_it_again(
    settled: Settled, started: Enrolled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settled(f"run = {json.dumps(['sh', '-c', KILLS_THE_AGENT])}")
    participant = exporting(started(**PLAN | {"rounds": {"total": 2, "min_clients": 1}}), settings)
    take_part(participant, next_brief(participant))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "silo.toml"), "command"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert killed.returncode == -signal.SIGKILL
    folder = served_by(settings)
    left = Path("/proc", (folder.path / "left").read_text().strip())
    assert left.exists()
    # The link has moved; that the server knows is not sure.
    assert (folder.current(), Serving.read(settings.folder).notified) == ("aster@2", None)
    run(exporting(participant, settings), limited_sleep(500))
    assert not left.exists() or " Z " in (left / "stat").read_text()
    assert "was left by an agent that was killed; it is ended" in caplog.text
    assert (folder.path / "hook.log").read_text().splitlines() == [
        "aster@1 begins",
        "aster@1 ends",
        "aster@2 begins",
        "aster@2 begins",
        "aster@2 ends",
        "aster@3 begins",
        "aster@3 ends",
    ]
    assert Serving.read(settings.folder) == Serving(notified="aster@3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "adapter"),
    [
        (
            {"name": "fedmosaic", "options": {"mix": "gate"}},
            {"kind": "pq", "rank": 4, "roles": ["v"], "same_architecture_rank": 0},
        ),
        ({"name": "fedmosaic"}, {"kind": "pq", "rank": 4, "roles": ["v", "down"], "private_rank": 0}),
        ({"name": "flora"}, {"kind": "lora", "rank": 2, "roles": ["v"]}),
        ({"name": "fedex_lora"}, {"kind": "lora", "rank": 2, "roles": ["v"]}),
    ],
    ids=["gated", "pq", "flora", "fedex_lora"],
)
def test_revision_gives_the_adapter_of_its_round(
    settled: Settled, started: Enrolled, strategy: dict[str, Any], adapter: dict[str, Any]
) -> None:
    settings = settled(keep_revisions="9")
    participant = exporting(
        started(
            **PLAN | {"strategy": strategy, "adapter": adapter, "rounds": {"total": 2, "min_clients": 1}}
        ),
        settings,
    )
    expected: list[dict[str, Any]] = []
    home, silo = participant.workspace.home, participant.trainer.silo
    for number in (1, 2):
        take_part(participant, next_brief(participant))
        with adapter_of_round(silo, home, number, "kept") as placed:
            expected.append(effect(placed.adapter))
    run(participant, limited_sleep(500))
    with adapter_of_round(silo, home, None, "kept") as placed:
        expected.append(effect(placed.adapter))
    shutil.rmtree(home / "rounds")
    for number, effects in enumerate(expected, start=1):
        source = revision_adapter(settings.folder, number)
        assert source.facts().federation == home.name
        with source.attach(silo) as placed:
            for name, values in effect(placed.adapter).items():
                np.testing.assert_array_equal(values, effects[name])


def effect(adapter: Adapter) -> dict[str, Any]:
    """Return the change of each module's weights, and its shift."""
    changes = {path: lora.B @ lora.A for path, lora in adapter.as_lora().items()}
    assert any(np.abs(change).max() > 0 for change in changes.values())
    return changes


def test_commands_show_revisions_and_roll_back(settled: Settled, started: Enrolled, tmp_path: Path) -> None:
    settings = settled()
    file = tmp_path / "silo.toml"
    participant = exporting(started(**PLAN), settings)
    empty = tessera("history", "--config", file)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "no revisions yet" in empty.stderr
    for _ in range(2):
        take_part(participant, next_brief(participant))
    rows = json.loads(tessera("history", "--config", file, "--json").stdout)
    assert [(row["number"], row["marks"]) for row in rows] == [
        (2, ["newest", "served", "exported"]),
        (1, ["exported"]),
    ]
    done = tessera("rollback", "aster@1", "--config", file)
    assert done.exit_code == 0, done.output
    assert "aster@1 is served (round 1); before: aster@2" in done.stdout
    shown = tessera("history", "--config", file, env={"COLUMNS": "200"}).stdout
    assert "round 1, trained" in shown
    assert "served, pinned, exported" in shown
    status = json.loads(tessera("status", "--config", file, "--json").stdout)["serving"]
    expected = {"name": "aster@1", "newest": 2, "pinned": True, "failure": None, "unreadable": None}
    assert status == expected
    again = tessera("rollback", "newest", "--config", file)
    assert "aster@2 is served (round 2); before: aster@1" in again.stdout
    for wrong, reason in (("0", "is not a revision; pass a number"), ("9", "revision 9 is not in")):
        refused = tessera("rollback", wrong, "--config", file)
        assert refused.exit_code == 1
        assert reason in refused.output


def test_rollback_without_an_export_folder_is_refused(
    settled: Settled, started: Enrolled, tmp_path: Path
) -> None:
    settled(keep_revisions="2")
    started(**PLAN)
    refused = tessera("rollback", "1", "--config", tmp_path / "silo.toml")
    assert refused.exit_code == 1
    assert "export.after_round is not set" in refused.output
    assert "tessera agent export --revision 1 --out FOLDER" in refused.output


def test_revision_excludes_other_selections(settled: Settled, started: Enrolled, tmp_path: Path) -> None:
    settled()
    started(**PLAN)
    file = tmp_path / "silo.toml"
    for options in (("--round", "1"), ("--variant", "served"), ("--adapter", str(file))):
        refused = tessera("export", "--config", file, "--out", tmp_path / "x", "--revision", "1", *options)
        assert refused.exit_code == 1
        assert "--revision selects one kept state" in refused.output


@pytest.fixture(autouse=True)
def _quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_command, "_GRACE_SECONDS", 1.0)
