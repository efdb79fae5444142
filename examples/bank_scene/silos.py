"""The agents of the scene as processes: started, killed as by a power cut, and taken out of the federation.

Those that are killed are processes of `tessera agent run` from the start. The others are forks of one process
that has imported torch, which saves 300 MB each.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from client_agent.simulation.admin_client import Operator
from client_agent.simulation.coordinator_process import TESSERA
from examples.agents import DemoFailed, Program, end_of, start_agent

_GIVE_UP_SECONDS = 900.0
_POLL_SECONDS = 0.2
_END_SECONDS = 300.0


class Silos:
    """The agents of a federation by the name of their silo."""

    def __init__(
        self,
        forking: Program,
        operator: Operator,
        path: str,
        folder: Path,
        write_config: Callable[[str], Path],
        victims: Collection[str],
    ) -> None:
        self._forking = forking
        self._operator = operator
        self._path = path
        self._folder = folder
        self._write_config = write_config
        self._victims = victims
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def running(self) -> dict[str, subprocess.Popen[bytes]]:
        """The processes of all silos that were not taken out; those of forks forward signals to them."""
        return self._running

    def home(self, name: str) -> Path | None:
        """Return the folder of a silo's agent for this federation; None before it has one."""
        found = self._folder / name / "state" / self._path.rpartition("/")[2]
        return found if found.is_dir() else None

    def log(self, name: str) -> str:
        """Return what an agent logged so far, without line breaks."""
        file = self._folder / name / "agent.log"
        return " ".join(file.read_text("utf-8", "replace").split()) if file.is_file() else ""

    def enrol(self, names: Iterable[str]) -> None:
        """Enrol new silos, which take part in no round before `join`.

        Raises:
            DemoFailed: one could not enrol.
        """
        enrolling = {name: self._command("enrol", name, token=self._token(name)) for name in names}
        for name, process in enrolling.items():
            process.communicate()
            if process.returncode != 0:
                raise DemoFailed(f"{name} could not enrol{end_of(self._folder / name / 'agent.log')}")

    def join(self, names: Iterable[str], *, enrol: bool = False) -> None:
        """Start the agents of silos, which enrol first or have before, and wait until all ask for work."""
        wanted = set(names)
        for name in sorted(wanted):
            self._running[name] = self._command("run", name, token=self._token(name) if enrol else None)
        self.until(lambda: wanted <= self._asking(), f"{', '.join(sorted(wanted))} to ask for work")

    def kill(self, name: str) -> int:
        """Kill a victim's process with SIGKILL; return its id."""
        process = self._running[name]
        process.kill()
        process.wait()
        _close(process)
        return process.pid

    def revive(self, name: str) -> int:
        """Start a victim's agent again in its folder; return its process id."""
        self._running[name] = self._command("run", name)
        return self._running[name].pid

    def leave(self, names: Iterable[str]) -> None:
        """Stop the agents of silos, and revoke them."""
        leaving = list(names)
        for name in leaving:
            self._running[name].terminate()
        for name in leaving:
            process = self._running.pop(name)
            process.wait(timeout=_END_SECONDS)
            _close(process)
        ids = {client["name"]: client["client_id"] for client in self._clients()}
        for name in leaving:
            self._operator.delete(f"{self._path}/clients/{ids[name]}")

    def until(self, condition: Callable[[], bool], what: str, *, every: float = _POLL_SECONDS) -> None:
        """Wait until something is the case.

        Raises:
            DemoFailed: an agent stopped, or it was not the case for too long.
        """
        began = time.monotonic()
        while not condition():
            self.check()
            if time.monotonic() - began > _GIVE_UP_SECONDS:
                raise DemoFailed(
                    f"waited {_GIVE_UP_SECONDS:.0f} s for {what}: see */agent.log in {self._folder}"
                )
            time.sleep(every)

    def check(self) -> None:
        """Raise if an agent stopped with an error.

        Raises:
            DemoFailed: it did.
        """
        for name, process in self._running.items():
            if process.poll() not in (None, 0):
                raise DemoFailed(f"agent {name} stopped{end_of(self._folder / name / 'agent.log')}")

    def wait(self) -> None:
        """Wait until every agent has its final weights and exits.

        Raises:
            DemoFailed: an agent failed, or does not end.
        """
        self.until(lambda: all(p.poll() is not None for p in self._running.values()), "the agents to end")
        self.check()

    def stop(self) -> None:
        """End every agent that still runs."""
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
        for process in self._running.values():
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close(process)

    def _token(self, name: str) -> str:
        path = f"{self._path}/enrolment-tokens"
        return str(self._operator.post(path, {"client_name": name})["token"])

    def _command(self, command: str, name: str, token: str | None = None) -> subprocess.Popen[bytes]:
        program = TESSERA if name in self._victims else self._forking
        arguments = [command, "--config", str(self._write_config(name)), "--name", name]
        return start_agent(program, arguments, self._folder / name, token)

    def _clients(self) -> list[dict[str, object]]:
        return self._operator.every(f"{self._path}/clients")

    def _asking(self) -> set[str]:
        return {
            str(client["name"])
            for client in self._clients()
            if client["last_seen_at"] != client["enrolled_at"]
        }


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()
