"""A reader who works through a page: a shell in an empty folder, and programs that run beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.acceptance.docs.blocks import ROOT, SHELL, Block, Command
from tests.acceptance.docs.command_line import is_possible
from tests.acceptance.docs.shown import has_line, ids_of, with_ids

_LONGEST = 120.0


class Reader:
    """Runs the blocks of a page in order; variables last from block to block, as in a shell."""

    def __init__(self, folder: Path, programs: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.state = folder.parent / f"{folder.name}.state"
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.variables = {**os.environ, **variables, "PATH": path}
        self.ids: dict[str, str] = {}
        self.running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self.not_run: list[str] = []

    def follow(self, block: Block) -> None:
        """Run a block by its instructions."""
        if block.instruction("skip") is not None or not is_possible(block):
            self.not_run.append(f"{block.line}: {block.instruction('skip') or block.instruction('needs')}")
            return
        for assignment in [*block.arguments("set"), *block.arguments("instead")]:
            name, _, value = assignment.partition(" ")[0].partition("=")
            self.shell(f"export {name}={ROOT / value if (ROOT / value).exists() else value}")
        if block.instruction("stop") is not None:
            self.stop("tessera serve")
        if block.title is not None:
            file = self.folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body)
        elif (package := block.instruction("package")) is not None:
            self._install(package)
        elif block.instruction("instead") is None and block.language in SHELL:
            self._commands(block)

    def _commands(self, block: Block) -> None:
        *first, last = block.commands
        is_compared = block.instruction("output") is None
        for command in first:
            self._command(block, command, 0, is_compared)
        if block.instruction("background") is not None:
            self.start(last.text, last.output)
        else:
            self._command(block, last, int(block.instruction("status") or 0), is_compared)

    def _command(self, block: Block, command: Command, status: int, is_compared: bool) -> None:
        done = self.shell(with_ids(command.text, self.ids), status)
        if block.language == "bash" or not is_compared:
            return
        output = done.stdout if not status else done.stdout + done.stderr
        ids = ids_of(command.output, output)
        assert ids is not None, f"line {block.line}: {command.text}\nprints\n{output}"
        self.ids |= ids

    def _install(self, name: str) -> None:
        """Put the package of the folder where programs find its entry points, as pip would."""
        project = tomllib.loads((self.folder / "pyproject.toml").read_text("utf-8"))["project"]
        installed = self.folder / f"{name}.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        groups = (
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
            for group, entries in project["entry-points"].items()
        )
        (installed / "entry_points.txt").write_text("".join(groups))
        self.shell(f"export PYTHONPATH=$PYTHONPATH:{self.folder}")

    def shell(self, script: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a script with the variables that the previous script exported.

        Raises:
            AssertionError: it ended with another status.
        """
        whole = f"{self._before()}set -e\n{{\n{script}\n}}\nexport -p > '{self.state}'\n"
        done = subprocess.run(
            ["bash", "-c", whole],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
        )
        assert done.returncode == status, (
            f"{script}\nended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def start(self, command: str, shown: tuple[str, ...] = ()) -> None:
        """Start a program and wait for the lines that the page shows."""
        log = self.folder.parent / f"{self.folder.name}.{len(self.running)}.log"
        script = f"{self._before()}exec {with_ids(command, self.ids)}\n"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", script], cwd=self.folder, env=self.variables, stdout=file, stderr=file
            )
        self.running[command] = (process, log)
        deadline = time.monotonic() + _LONGEST
        for line in (line for line in shown if line not in ("", "...")):
            while not has_line(line, log.read_text()):
                assert process.poll() is None, f"{command} ended\n{log.read_text()}"
                assert time.monotonic() < deadline, f"{command}: no line {line}\n{log.read_text()}"
                time.sleep(0.05)

    def stop(self, command: str) -> None:
        """Stop a program as with Ctrl-C."""
        process, _ = self.running.pop(command)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)

    def close(self) -> None:
        """Stop all programs."""
        for process, _ in self.running.values():
            process.terminate()
        for process, _ in self.running.values():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()

    def _before(self) -> str:
        return f". '{self.state}'\n" if self.state.exists() else ""
