"""One coordinator in a process of its own, which receives all hostile inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.attacks.hostile.scene import Scene, finish, set_up
from tests.scene.coordinator_process import start_process


@pytest.fixture(scope="session", params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def backend(request: pytest.FixtureRequest) -> str:
    """The kind of the coordinator's database."""
    return str(request.param)


@pytest.fixture(scope="session")
def scene(
    backend: str, fresh_database: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """A round in progress, which must be published after all hostile inputs."""
    served = start_process(fresh_database(backend), tmp_path_factory.mktemp("coordinator"))
    try:
        prepared = set_up(served)
        yield prepared
        finish(prepared)
        assert "request-failed" not in served.log.read_text()
    finally:
        served.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat recorded measurements at the end of the output."""
    for kind in ("passed", "failed"):
        for report in terminalreporter.stats.get(kind, []):
            for name, value in report.user_properties:
                if name == "summary":
                    terminalreporter.write_line(str(value))
