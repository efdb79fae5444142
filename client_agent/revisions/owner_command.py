"""The command of `export.run`, which the silo's owner sets: run it, and end one that a killed agent left.

The command runs at least once for the newest served revision. An agent that is killed meanwhile leaves it
running; the next start ends it, and runs it again from its beginning.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from client_agent.errors import AgentError, Stopped
from schemas.messages.base import Strict

log = logging.getLogger("tessera.agent")

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 5.0
_LAST_OUTPUT = 500
_SECRET = re.compile(r".*(TOKEN|API_KEY|PASSWORD|SECRET)(_FILE)?")
"""Names of environment variables that the owner's command does not get."""
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class HookFailed(AgentError):
    """The command of `export.run` failed."""


class RunningCommand(Strict):
    """A command that was started, as it is recorded for an agent that starts after a kill.

    Attributes:
        pid: its process, and the group of its children.
        began: when that process began, since its number may be used again; None = unknown.
    """

    pid: int
    began: str | None

    def end(self) -> bool:
        """End the command and its children if it still runs; return whether it did."""
        if self.began is None or _beginning(self.pid) != self.began:
            return False
        log.warning("export.run: process %d was left by an agent that was killed; it is ended", self.pid)
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGTERM)
            end = time.monotonic() + _GRACE_SECONDS
            while _beginning(self.pid) == self.began and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
            os.killpg(self.pid, signal.SIGKILL)
        return True


def run_hook(
    command: tuple[str, ...],
    variables: dict[str, str],
    seconds: float,
    stop: Callable[[], bool],
    *,
    folder: Path | None = None,
    started: Callable[[RunningCommand], None] = lambda _: None,
) -> None:
    """Run a command of the silo's owner, without a shell and without this process's tokens.

    Args:
        variables: are added to the environment.
        folder: its working directory; None = that of this process.
        started: is called with the running command, before it is waited for.

    Raises:
        HookFailed: it cannot be started, ends with another status than 0, or takes more than `seconds`.
        Stopped: the agent was stopped; the command was ended.
    """
    environment = {name: value for name, value in os.environ.items() if not _SECRET.fullmatch(name)}
    # A path from the environment is relative to this process, whatever the command's working directory.
    program = str(Path(command[0]).absolute()) if "/" in command[0] else command[0]
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                (program, *command[1:]),
                env=environment | variables,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A group of its own, so that its children end with it.
                start_new_session=True,
            )
        except OSError as error:
            raise HookFailed(
                f"export.run: {command[0]} cannot be started ({error.strerror}); correct the command"
            ) from error
        end = time.monotonic() + seconds
        try:
            # A kill before this record leaves the command running beside the one of the next start.
            started(RunningCommand(pid=process.pid, began=_beginning(process.pid)))
            while (status := _status(process)) is None:
                if stop():
                    raise Stopped
                if time.monotonic() >= end:
                    raise HookFailed(
                        f"export.run: {command[0]} did not end within {seconds:g} s and was stopped; make it "
                        f"faster, or raise export.run_seconds{_last_output(output)}"
                    )
        except BaseException:  # Ctrl-C included: the command is in a session of its own
            _end(process)
            raise
        if status != 0:
            raise HookFailed(f"export.run: {command[0]} ended with status {status}{_last_output(output)}")


def _beginning(pid: int) -> str | None:
    """Return when a process began, as a text that no other process of this number has; None = it ended."""
    try:
        if not _BOOT.exists():  # no Linux
            shown = subprocess.run(("ps", "-o", "lstart=", "-p", str(pid)), capture_output=True, text=True)
            return shown.stdout.strip() or None
        # The name, which is in parentheses, may have spaces. See proc_pid_stat(5): state, then 18 fields.
        state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return None if state in "ZX" else f"{_BOOT.read_text().strip()} {fields[18]}"
    except (OSError, IndexError, ValueError):
        return None


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """Wait a moment for a command, and return its status; None = it still runs."""
    try:
        return process.wait(timeout=_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and its children."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=_GRACE_SECONDS)
    # Children may outlive the command, or ignore the first signal.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_output(output: IO[bytes]) -> str:
    """Return the end of what a command printed, as part of a sentence."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _LAST_OUTPUT))
    text = output.read().decode(errors="replace").strip()
    return f": {text}" if text else ""
