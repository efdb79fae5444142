"""The operator's commands: run the service here, and talk to it from anywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator import operator
from coordinator.operator.api import DEFAULT_URL, Coordinator, Url


def commands(app: typer.Typer) -> None:
    """Add the coordinator's commands to `tessera`."""
    app.command("serve", rich_help_panel="Coordinator")(serve)
    app.command("migrate", rich_help_panel="Coordinator")(migrate)
    app.command("ready", rich_help_panel="Coordinator")(ready)
    operator.commands(app)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; TESSERA_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; TESSERA_PORT.")] = None,
) -> None:
    """Run the coordinator; everything else is configured by TESSERA_* variables."""
    from coordinator.errors import SettingsUnusable
    from coordinator.serving import serve as run

    try:
        run(host=host, port=port)
    except SettingsUnusable as error:
        _give_up(error)


def migrate() -> None:
    """Bring the database at TESSERA_DATABASE_URL to this version."""
    from coordinator.errors import SettingsUnusable
    from coordinator.serving import migrate as run

    try:
        run()
    except SettingsUnusable as error:
        _give_up(error)
    typer.echo("The database is current.")


def ready(url: Url = DEFAULT_URL) -> None:
    """Ask whether a coordinator can serve, database and all; exit 1 and say why if not. For health checks."""
    Coordinator(url, token="").check_readiness()


def _give_up(error: Exception) -> None:
    typer.echo(f"tessera: {error}", err=True)
    raise typer.Exit(1)
