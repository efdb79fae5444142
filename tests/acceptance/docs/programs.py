"""The programs for a page's commands: `tessera`, forked from a process that has imported torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def write_programs(folder: Path, command: Sequence[str]) -> None:
    """Write the program `tessera`: `serve` and `compare` by themselves, all else by a preloaded command."""
    program = folder / "tessera"
    code = "import sys; sys.argv[0] = 'tessera'; from schemas.command import main; main()"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f'serve|compare) exec "{sys.executable}" -c "{code}" "$@";;\n'
        f'*) exec {" ".join(command)} "$@";;\n'
        "esac\n"
    )
    program.chmod(0o755)
    for name in ("pip", "pip3"):  # pages install nothing in the environment of the tests
        (folder / name).write_text("#!/bin/sh\necho 'tests of pages install nothing' >&2\nexit 1\n")
        (folder / name).chmod(0o755)
