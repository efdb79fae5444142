"""Commands that run the service on this machine: serve, migrate, backup, ready."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.client import DEFAULT_URL, Coordinator, Url


def commands(app: typer.Typer) -> None:
    app.command("serve", rich_help_panel="Coordinator")(serve)
    app.command("ready", rich_help_panel="Coordinator")(ready)
    app.command("migrate", rich_help_panel="Coordinator")(migrate)
    app.command("backup", rich_help_panel="Coordinator")(backup)
    app.add_typer(payloads, name="payloads", rich_help_panel="Coordinator")


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; TESSERA_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; TESSERA_PORT.")] = None,
) -> None:
    """Run the coordinator; configure it with TESSERA_* variables."""
    from coordinator.errors import SettingsUnusable
    from coordinator.server import serve as run

    try:
        run(host=host, port=port)
    except SettingsUnusable as error:
        _fail(error)


def migrate() -> None:
    """Migrate the database at TESSERA_DATABASE_URL to this version.

    Prints names in use that look alike, from before such names were refused, and what to do about them.
    """
    from coordinator.errors import SettingsUnusable
    from coordinator.server import migrate as run

    try:
        similar = run()
    except SettingsUnusable as error:
        _fail(error)
    for sentence in similar:
        typer.echo(f"warning: {sentence}", err=True)
    typer.echo("The database is up to date.")


def backup(
    file: Annotated[Path, typer.Argument(help="New file, preferably on another disk.", show_default=False)],
) -> None:
    """Copy the SQLite database at TESSERA_DATABASE_URL while it is in use.

    Writers wait meanwhile, or get a 503 and retry. The copy does not contain the signing key: back up
    TESSERA_SIGNING_KEY, or the file beside the database, separately.
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
            _fail(error)
    typer.echo(
        f"Copied the database to {file}. It does not contain the signing key; back that up separately."
    )


payloads = typer.Typer(help="Where tensors are stored: in rows of the database, or in an object store.")


@payloads.command("move")
def move_payloads(
    to: Annotated[
        str,
        typer.Option(help="rows, or a store: s3://BUCKET/PREFIX, file:///FOLDER.", show_default=False),
    ],
) -> None:
    """Move the tensors of the database at TESSERA_DATABASE_URL; the coordinator may go on.

    Each is copied, read back and compared with its digest before its place changes. Safe to interrupt: the
    same command goes on. To a store, tensors of 1 MiB or more are moved.
    """
    from coordinator.errors import Refused, SettingsUnusable
    from coordinator.maintenance import move_payloads as run

    sizes: list[int] = []
    try:
        run(to, progress=sizes.append)
    except (SettingsUnusable, Refused, LookupError) as error:
        if sizes:
            typer.echo(f"moved {len(sizes)} payloads before this:", err=True)
        _fail(error)
    typer.echo(f"moved {len(sizes)} payloads, {sum(sizes) / 2**20:.1f} MiB, to {to}")


@payloads.command("check")
def check_payloads() -> None:
    """Read the last byte of every tensor in a store; exit 1 if one is missing, as after a restore."""
    from coordinator.errors import Refused, SettingsUnusable
    from coordinator.maintenance import check_payloads as run

    try:
        faults = run()
    except (SettingsUnusable, Refused) as error:
        _fail(error)
    for fault in faults:
        typer.echo(fault)
    if faults:
        raise typer.Exit(1)
    typer.echo("every payload in a store is there")


@payloads.command("take-over")
def take_over_payloads(
    store: Annotated[
        str | None, typer.Option(help="The store; by default that of TESSERA_PAYLOAD_STORE.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Take it over without confirmation.")] = False,
) -> None:
    """Make the database at TESSERA_DATABASE_URL the owner of its tensors' folder in a store.

    Needed where two databases with one signing key have used a store, as after a restored backup: neither
    moves or deletes there until this command ran for one of them. Stop the coordinator of the other first, or
    set another store there. Two hours later, objects are deleted that this database has no tensor for.
    """
    from coordinator.errors import Refused, SettingsUnusable
    from coordinator.maintenance import take_over as run

    if not yes:
        typer.confirm("Does no other coordinator with this signing key use the store any more?", abort=True)
    try:
        url = run(store)
    except (SettingsUnusable, Refused) as error:
        _fail(error)
    typer.echo(
        f"this database owns its folder in {url}; objects without a tensor are deleted from two hours on"
    )


def ready(url: Url = DEFAULT_URL) -> None:
    """Check that a coordinator and its database are ready; exit 1 with the reason if not. For health
    checks.
    """
    for sentence in Coordinator(url, token="").check_readiness():
        typer.echo(f"warning: {sentence}", err=True)


def _fail(error: Exception) -> None:
    typer.echo(f"tessera: {error}", err=True)
    raise typer.Exit(1)
