"""The command `tessera quickstart`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from schemas.command import fail

quickstart = typer.Typer()

_INTERRUPTED = 130  # 128 + SIGINT, as in shells
_NEEDED = {"coordinator": ("fastapi", "sqlalchemy", "uvicorn"), "agent": ("torch", "transformers", "peft")}


def commands(app: typer.Typer) -> None:
    """Add `tessera quickstart` to `tessera`."""
    app.add_typer(quickstart)


@quickstart.command(name="quickstart")
def run_quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the federation's files.")] = Path(
        "tessera-quickstart"
    ),
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--no-keep",
            help="Keep the coordinator and its page running at the end, until Ctrl-C.",
            show_default="keep on a terminal",
        ),
    ] = None,
) -> None:
    """Run a first federation on this machine: two silos, a tiny model, three rounds, about a minute.

    Needs no data, no download and no GPU: model and data come with the package. Prints each silo's losses, a
    link to the coordinator's page, and commands to go on with. An earlier quickstart's folder is kept under
    another name.

    Example: `tessera quickstart`
    """
    _require_extras()
    from client_agent.errors import AgentError
    from schemas.user_files import FileUnusable
    from studies.interrupts import answer_at_once
    from studies.quickstart.folder import QuickstartFolder
    from studies.quickstart.play import play

    answer_at_once()
    try:
        play(QuickstartFolder.create(out), keep=sys.stdin.isatty() if keep is None else keep)
    except KeyboardInterrupt:
        print(
            "stopped before the end; a quickstart does not resume, and the same command begins a new one",
            file=sys.stderr,
        )
        raise typer.Exit(_INTERRUPTED) from None
    except (AgentError, FileUnusable) as error:
        fail(error)


def _require_extras() -> None:
    missing = [extra for extra, modules in _NEEDED.items() if not all(map(find_spec, modules))]
    if missing:
        fail(
            f"this command runs a coordinator and two agents, and the extra {' and '.join(missing)} is not "
            "installed; in a clone of Tessera, run pip install '.[coordinator,agent]'"
        )
