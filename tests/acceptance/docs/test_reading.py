"""The commands of tutorials and guides, run in order in an empty folder against a coordinator."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.preloaded import preloaded
from tests.acceptance.docs.blocks import PAGES, ROOT, blocks
from tests.acceptance.docs.programs import write_programs
from tests.acceptance.docs.reader import Reader
from tests.acceptance.docs.states import prepare

_READ = [page for page in PAGES if page.stem != "index"]
_FAST = {  # for coordinators that are looked at more often than by default
    "TESSERA_TICK_SECONDS": "0.05",
    "TESSERA_RETRY_SECONDS": "0.2",
    "TESSERA_POLLS_PER_SECOND": "20",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "90",
    "TERM": "dumb",
    "PYTHONPATH": str(ROOT),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the program `tessera`."""
    folder = tmp_path_factory.mktemp("programs")
    with preloaded() as command:
        write_programs(folder, command)
        yield folder


@pytest.fixture
def reader(tmp_path: Path, programs: Path) -> Iterator[Reader]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    coordinates = {"TESSERA_PORT": str(port), "TESSERA_URL": url, "TESSERA_AGENT_URL": url}
    folder = tmp_path / "empty"
    folder.mkdir()
    # Whatever a page's python installs goes to a folder of the test's own.
    opened = Reader(folder, programs, _FAST | coordinates | {"PIP_TARGET": str(tmp_path / "packages")})
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", _READ, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_pages_commands_print_the_shown_output(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        for state in block.arguments("with"):
            prepare(reader, state)
        reader.follow(block)
    assert all(reader.not_run)
    print(*reader.not_run, sep="\n")
