"""Commands that run the service on this machine: serve, migrate, backup, ready."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.client import DEFAULT_URL, Coordinator, Url


def commands(app: typer.Typer) -> None:
    """Add the coordinator's commands to `tessera`."""
    app.command("serve", rich_help_panel="Coordinator")(serve)
    app.command("migrate", rich_help_panel="Coordinator")(migrate)
    app.command("backup", rich_help_panel="Coordinator")(backup)
    app.command("ready", rich_help_panel="Coordinator")(ready)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; TESSERA_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; TESSERA_PORT.")] = None,
) -> None:
    """Run the coordinator; everything else is configured by TESSERA_* variables."""
    from coordinator.errors import SettingsUnusable
    from coordinator.server import serve as run

    try:
        run(host=host, port=port)
    except SettingsUnusable as error:
        _give_up(error)


def migrate() -> None:
    """Bring the database at TESSERA_DATABASE_URL to this version."""
    from coordinator.errors import SettingsUnusable
    from coordinator.server import migrate as run

    try:
        run()
    except SettingsUnusable as error:
        _give_up(error)
    typer.echo("The database is current.")


def backup(
    file: Annotated[Path, typer.Argument(help="A new file, best on another disk.", show_default=False)],
) -> None:
    """Copy the SQLite database at TESSERA_DATABASE_URL while it is in use.

    Who writes meanwhile waits, or is told to come again. The signing key is not in the copy: keep
    TESSERA_SIGNING_KEY, or the file beside the database, as well.
    """
    from rich.console import Console
    from rich.progress import Progress

    from coordinator.errors import SettingsUnusable
    from coordinator.server import backup as run

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("copying", total=None)
        try:
            run(file, progress=lambda done, total: bar.update(task, completed=done, total=total))
        except SettingsUnusable as error:
            _give_up(error)
    typer.echo(f"The database is copied to {file}. The signing key is not in it: keep that apart.")


def ready(url: Url = DEFAULT_URL) -> None:
    """Ask whether a coordinator can serve, database and all; exit 1 and say why if not. For health checks."""
    Coordinator(url, token="").check_readiness()


def _give_up(error: Exception) -> None:
    typer.echo(f"tessera: {error}", err=True)
    raise typer.Exit(1)
