"""The command line: its version, completion in shells, and its advice to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.argv[0] = 'tessera'; from schemas.command import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_version_is_that_of_the_project() -> None:
    done = _run("--version")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert done.stdout == f"tessera {version}\n"
    assert done.returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_in_the_users_shell(shell: str, tmp_path: Path) -> None:
    done = _run(
        "--install-completion", shell, HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    assert done.returncode == 0, done.stderr
    written = [path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_TESSERA_COMPLETE" in text for text in written)


@pytest.mark.slow
def test_completion_offers_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        words = line.split(" ")
        environment = {
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_TESSERA_COMPLETE": "complete_bash",
        }
        return _run(**environment).stdout.split()

    assert {"serve", "federation", "agent"} <= set(completed("tessera "))
    assert completed("tessera enrol") == ["enrolment"]
    assert "--strategy" in completed("tessera federation create --st")


def test_unpublished_package_names_are_never_advised() -> None:
    """Whoever registers the name on a package index would run code wherever the advice is followed."""
    pattern = re.compile(r"tessera-fl\[|pip install (-\S+ )*['\"]?tessera")
    packages = ("schemas", "coordinator", "client_agent", "studies", "migrations", "examples", "benchmarks")
    endings = (".py", ".md", ".sh", ".html", ".js")
    files = [ROOT / "README.md", ROOT / "Makefile", ROOT / "Dockerfile", ROOT / "docker-compose.yml"]
    for folder in (*packages, "deploy", "docs"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in endings]
    assert len(files) > 100
    assert not [str(path) for path in files if pattern.search(path.read_text("utf-8"))]
