"""The agents of the scene as processes: started, killed as by a power cut, and taken out of the federation.

Those that are killed are processes of `tessera agent run` from the start. The others are forks of one process
that has imported torch, which saves 300 MB each.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from client_agent.transport.admin_client import Operator
from examples.agents import AgentProcesses, DemoFailed, Program, close_output, end_of, start_agent
from studies.coordinator_process import TESSERA

_END_SECONDS = 300.0


class Silos(AgentProcesses):
    """The agents of a federation by the name of their silo."""

    def __init__(
        self,
        forking: Program,
        operator: Operator,
        federation: str,
        folder: Path,
        write_config: Callable[[str], Path],
        victims: Collection[str],
    ) -> None:
        super().__init__(operator, federation, folder)
        self._forking = forking
        self._write_config = write_config
        self._victims = victims

    @property
    def running(self) -> dict[str, subprocess.Popen[bytes]]:
        """The processes of all silos that were not taken out; those of forks forward signals to them."""
        return self._running

    def home(self, name: str) -> Path | None:
        """Return the folder of a silo's agent for this federation; None before it has one."""
        home = self._folder / name / "state" / self._path.rpartition("/")[2]
        return home if home.is_dir() else None

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
        joining = set(names)
        for name in sorted(joining):
            self._running[name] = self._command("run", name, token=self._token(name) if enrol else None)
        self.until(lambda: joining <= self._asking(), f"{', '.join(sorted(joining))} to ask for work")

    def kill(self, name: str) -> int:
        """Kill a victim's process with SIGKILL; return its id."""
        process = self._running[name]
        process.kill()
        process.wait()
        close_output(process)
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
            close_output(process)
        ids = {client["name"]: client["client_id"] for client in self._clients()}
        for name in leaving:
            self._operator.delete(f"{self._path}/clients/{ids[name]}")

    def wait(self) -> None:
        """Wait until every agent has its final weights and exits.

        Raises:
            DemoFailed: an agent failed, or does not end.
        """
        self.until(lambda: all(p.poll() is not None for p in self._running.values()), "the agents to end")
        self.check()

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
