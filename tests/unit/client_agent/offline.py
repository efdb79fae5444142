"""One silo by `sync` and `work` in this process, as two machines share its folder."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from client_agent.offline_work import do_work
from client_agent.rounds.participant import Participant, Trainer
from client_agent.rounds.pending_work import PendingWork, pending_work
from client_agent.rounds.sync_steps import SyncClient
from client_agent.session import StopFlag, open_offline, open_sync
from client_agent.settings import read_settings
from client_agent.sync import Outcome, synchronise
from client_agent.training.silo import Silo
from tests.scene.faults import Killed


@dataclass
class Machines:
    """A login node with a network, and a compute node without; `file` is their silo.toml."""

    file: Path
    silo: Silo
    monkeypatch: pytest.MonkeyPatch

    def sync(self, *, waits: bool = True, change: Callable[[SyncClient], Any] | None = None) -> Outcome:
        with open_sync(read_settings(self.file), StopFlag()) as client:
            if change is not None:
                change(client)
            return synchronise(replace(client, sleep=lambda _: time.sleep(0.02)), waits=waits)

    def pending(self) -> PendingWork | None:
        with open_offline(read_settings(self.file), StopFlag()) as client:
            return pending_work(client)

    def work(self) -> str | None:
        """Do the next task with all connections blocked, and return its name."""
        with (
            self.monkeypatch.context() as patched,
            open_offline(read_settings(self.file), StopFlag()) as client,
        ):
            patched.setattr(socket.socket, "connect", _no_network)
            pending = pending_work(client)
            if pending is not None:
                trainer = Trainer(self.silo, client.session, lambda: False)
                do_work(Participant(client.session, client.workspace, trainer, client.sleep), pending)
            return pending.task if pending is not None else None

    def kill_at_each_file(self, step: Callable[[], object]) -> int:
        """Kill a step at its first file, then at its second, and so on; return how often it was killed."""
        for files in count():
            try:
                with killed_after(self.file.parent, files, self.monkeypatch):
                    step()
            except Killed:
                continue
            return files
        raise AssertionError


@contextmanager
def killed_after(folder: Path, files: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill whatever writes another file below a folder."""
    rename, left = os.replace, [files]

    def replace_or_die(source: Any, target: Any) -> None:
        if Path(target).is_relative_to(folder):
            if not left[0]:
                raise Killed
            left[0] -= 1
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace_or_die)
        yield


def _no_network(*_: object) -> None:
    raise AssertionError("a connection was opened without a network")
