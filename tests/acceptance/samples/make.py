"""Store a sample of this version: what a small federation leaves, as a zip file beside this module.

    python -m tests.acceptance.samples.make

A sample has the plan, the coordinator's database with its signing key, and the folder of one silo. It is made
once for each version with a new format, and never changed: later versions must read it.
"""

from __future__ import annotations

import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

from client_agent import __version__
from schemas.messages.recommendations import Table
from studies.quickstart import folder as quickstart
from studies.quickstart import play

SAMPLES = Path(__file__).parent
SILO = "north"
_LEFT_OUT = {"agent.log", "agent.lock", "prefixes"}  # a log, a lock, and a cache
_recommended = quickstart.plan


def small_plan() -> Table:
    """Return the plan of a quickstart with the smallest adapter and little training."""
    plan = _recommended()
    adapter: Table = {"kind": "lora", "rank": 1, "roles": ["v"], "layers": 1}
    training: Table = {**plan["training"], "steps": 4}  # type: ignore[dict-item]
    return {**plan, "name": "sample", "adapter": adapter, "training": training}


def main() -> None:
    """Run the federation, and write the files that a later version has to read."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(quickstart, "plan", small_plan),
        patch.object(play, "plan", small_plan),
    ):
        path = Path(folder) / "quickstart"
        play.play(quickstart.QuickstartFolder.create(path), keep=False)
        file = SAMPLES / f"{__version__}.zip"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in _members(path):
                archive.writestr(member, content)
    print(f"wrote {file}, {file.stat().st_size} bytes")


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    yield "plan.json", (path / "plan.json").read_bytes()
    database, compact = path / "coordinator/tessera.db", path / "compact.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM INTO ?", (str(compact),))
    yield "coordinator/tessera.db", compact.read_bytes()
    yield "coordinator/tessera.db-signing-key", database.with_name("tessera.db-signing-key").read_bytes()
    for file in sorted((path / SILO).rglob("*")):
        if file.is_file() and not _LEFT_OUT & {*file.parts}:
            yield file.relative_to(path).as_posix(), file.read_bytes()


if __name__ == "__main__":
    main()
