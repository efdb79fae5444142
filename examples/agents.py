"""Agents of a demo: each is a process of `tessera agent ...` with a folder of its own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client_agent.transport.admin_client import Operator
from schemas.user_files import FileUnusable
from studies.coordinator_process import quiet_environment
from studies.earlier_folder import set_aside

MARK = ".tessera-demo"
INTERRUPTED = 130  # 128 + SIGINT, as in shells
NOT_RESUMED = "stopped before the end; a demo does not resume, and the same command begins a new one"
_GIVE_UP_SECONDS = 900.0


class DemoFailed(Exception):
    """Something did not work; the message names the file to look at."""


def make_room(folder: Path) -> None:
    """Make the folder of a demo; that of an earlier demo, with what its user exported, gets another name."""
    try:
        earlier = set_aside(folder) if folder.exists() and any(folder.iterdir()) else None
    except FileUnusable as error:
        raise SystemExit(f"the demo stopped: {error}") from error
    if earlier is not None:
        shown = os.path.relpath(earlier) if earlier.is_relative_to(Path.cwd()) else earlier
        print(f"The earlier demo's folder is now {shown}; delete it when you do not need it.", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def may_be_emptied(folder: Path) -> bool:
    """Whether a folder does not exist, is empty, or was made by a demo."""
    if not folder.exists():
        return True
    return folder.is_dir() and ((folder / MARK).is_file() or not any(folder.iterdir()))


Program = Sequence[str]
"""The words of a command that stands for `tessera`, such as `coordinator_process.TESSERA`."""


def start_agent(
    program: Program, arguments: list[str], folder: Path, token: str | None = None
) -> subprocess.Popen[bytes]:
    """Start `tessera agent ...`; it logs to agent.log in the folder, and its output is a pipe."""
    environment = quiet_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    if token is not None:
        environment["TESSERA_AGENT_TOKEN"] = token
    with (folder / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [*program, "agent", *arguments], stdout=subprocess.PIPE, stderr=log, env=environment
        )


def end_of(log: Path) -> str:
    """Return the last line of an agent's log, and where the log is, as the end of a message."""
    lines = log.read_text("utf-8", "replace").splitlines() if log.is_file() else []
    return f" ({lines[-1] if lines else 'it logged nothing'}); see {log}"


@dataclass(frozen=True, slots=True)
class Job:
    """One command of the agent that ends by itself."""

    name: str
    arguments: list[str]
    folder: Path


def run_jobs(program: Program, jobs: Sequence[Job], *, at_once: int) -> Iterator[tuple[Job, str]]:
    """Run jobs, a few at a time, and yield each with its output, in order.

    Raises:
        DemoFailed: a job failed.
    """
    waiting = list(jobs)
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running.append((job, start_agent(program, job.arguments, job.folder)))
            job, process = running[0]
            printed, _ = process.communicate()
            del running[0]
            if process.returncode != 0:
                raise DemoFailed(f"{job.name} failed{end_of(job.folder / 'agent.log')}")
            yield job, printed.decode()
    finally:
        for _, process in running:
            process.terminate()
            process.wait()


class AgentProcesses:
    """The processes of a federation's agents by the name of their silo; each has a folder below `folder`."""

    def __init__(self, operator: Operator, federation: str, folder: Path) -> None:
        self._operator = operator
        self._path = f"/v1/federations/{federation}"
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def check(self) -> None:
        """Raise if an agent stopped with an error.

        Raises:
            DemoFailed: an agent's process ended with an error.
        """
        for name, process in self._running.items():
            if process.poll() not in (None, 0):
                raise DemoFailed(f"agent {name} stopped{end_of(self._folder / name / 'agent.log')}")

    def until(self, condition: Callable[[], bool], awaited: str, *, every: float = 0.3) -> None:
        """Wait until a condition holds; `awaited` names it, and it is checked every `every` seconds.

        Raises:
            DemoFailed: an agent stopped, or the condition did not hold for too long.
        """
        began = time.monotonic()
        while not condition():
            self.check()
            if time.monotonic() - began > _GIVE_UP_SECONDS:
                raise DemoFailed(
                    f"waited {_GIVE_UP_SECONDS:.0f} s for {awaited}: see */agent.log in {self._folder}"
                )
            time.sleep(every)

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
            close_output(process)

    def _token(self, name: str) -> str:
        return str(self._operator.post(f"{self._path}/enrolment-tokens", {"client_name": name})["token"])


def close_output(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe of an agent's output."""
    if process.stdout is not None:
        process.stdout.close()


class Agents(AgentProcesses):
    """The agents of a federation, each enrolled before its first round."""

    def __init__(
        self,
        program: Program,
        operator: Operator,
        federation: str,
        folder: Path,
        write_config: Callable[[str], Path],
    ) -> None:
        super().__init__(operator, federation, folder)
        self._program = program
        self._write_config = write_config
        self._enrolled: set[str] = set()

    def start(self, name: str) -> None:
        """Start a silo's agent, which enrols itself if it has not yet, unless it runs already."""
        if name not in self._running:
            config = self._write_config(name)
            token = None if name in self._enrolled else self._token(name)
            arguments = ["run", "--config", str(config), "--name", name]
            self._running[name] = start_agent(self._program, arguments, self._folder / name, token)

    def enrol(self, name: str) -> None:
        """Enrol a silo without starting its agent.

        Raises:
            DemoFailed: the command failed.
        """
        arguments = ["enrol", "--config", str(self._write_config(name)), "--name", name]
        process = start_agent(self._program, arguments, self._folder / name, self._token(name))
        process.communicate()
        if process.returncode != 0:
            raise DemoFailed(f"{name} could not enrol{end_of(self._folder / name / 'agent.log')}")
        self._enrolled.add(name)

    def wait(self) -> None:
        """Wait until every agent has its final weights and exits.

        Raises:
            DemoFailed: an agent does not end, or failed.
        """
        for name, process in self._running.items():
            try:
                process.wait(timeout=300)
            except subprocess.TimeoutExpired as error:
                log = self._folder / name / "agent.log"
                raise DemoFailed(f"agent {name} did not end with its federation: see {log}") from error
        self.check()

    def running(self) -> list[str]:
        """Return the silos whose agents have not ended."""
        return [name for name, process in self._running.items() if process.poll() is None]


@contextmanager
def running_agents(
    program: Program, operator: Operator, federation: str, folder: Path, write_config: Callable[[str], Path]
) -> Iterator[Agents]:
    """Yield the agents of a federation, none of them started; all are ended at the end of the block."""
    agents = Agents(program, operator, federation, folder, write_config)
    try:
        yield agents
    finally:
        agents.stop()


def has_polled(operator: Operator, path: str, name: str) -> bool:
    """Whether a client's agent has asked the coordinator for work since it enrolled."""
    clients = operator.every(f"{path}/clients")
    return any(c["name"] == name and c["last_seen_at"] != c["enrolled_at"] for c in clients)


def is_published(newest_round: dict[str, object], number: int) -> bool:
    """Whether a round is published, judged by the newest round; there may be none yet."""
    if not newest_round:
        return False
    newest = newest_round["round"]
    assert isinstance(newest, int)
    return newest > number or (newest == number and newest_round["state"] == "published")
