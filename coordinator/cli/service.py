"""Commands that run the service on this machine: serve, migrate, backup, ready."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.client import DEFAULT_URL, Coordinator, Url, fail, interrupted
from schemas.command import Yes, confirm


def commands(app: typer.Typer) -> None:
    app.command("serve", rich_help_panel="Coordinator")(serve)
    app.command("ready", rich_help_panel="Coordinator")(ready)
    app.command("migrate", rich_help_panel="Coordinator")(migrate)
    app.command("backup", rich_help_panel="Coordinator")(backup)
    app.add_typer(payloads, name="payloads", rich_help_panel="Coordinator")


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.", show_default="TESSERA_HOST, else 127.0.0.1")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on.", show_default="TESSERA_PORT, else 8000")
    ] = None,
) -> None:
    """Run the coordinator; configure it with TESSERA_* variables.

    The database is TESSERA_DATABASE_URL, or the file tessera.db in this folder. At its first start the
    coordinator prints the file of the first admin's token. Ctrl-C ends it gracefully.

    Example: `tessera serve --port 8080`
    """
    # Imported here: the other commands of this file must not load the whole service.
    from coordinator.errors import SettingsUnusable
    from coordinator.server import serve as run

    try:
        run(host=host, port=port)
    except SettingsUnusable as error:
        fail(error)


def migrate() -> None:
    """Migrate the database at TESSERA_DATABASE_URL to this version."""
    from coordinator.errors import SettingsUnusable
    from coordinator.server import migrate as run

    try:
        run()
    except SettingsUnusable as error:
        fail(error)
    typer.echo("The database is up to date.")


def backup(
    file: Annotated[
        Path, typer.Argument(help="New file for the copy, preferably on another disk.", show_default=False)
    ],
) -> None:
    """Copy the SQLite database at TESSERA_DATABASE_URL while it is in use.

    Agents whose writes wait for more than 10 to 30 seconds get status 503, and retry. The copy does not
    contain the signing key: back up TESSERA_SIGNING_KEY, or the key file beside the database, separately.
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
            fail(error)
        except KeyboardInterrupt:
            bar.stop()
            interrupted(f"{file} was not written; repeat the command")
    typer.echo(f"Copied the database to {file}. The copy has no signing key; back up the key separately.")


payloads = typer.Typer(
    help="Manage where tensors are stored: in rows of the database, or in an object store."
)


@payloads.command("move")
def move_payloads(
    to: Annotated[
        str,
        typer.Option(
            help="`rows`, or the URL of a store, such as s3://BUCKET/PREFIX or file:///FOLDER.",
            show_default=False,
        ),
    ],
) -> None:
    """Move the tensors of the database at TESSERA_DATABASE_URL; the coordinator can keep running.

    Each tensor is copied, read back and compared with its digest before its place changes. Tensors below
    1 MiB stay in rows. Safe to interrupt: the same command continues.
    """
    from coordinator.errors import Refusal, SettingsUnusable
    from coordinator.maintenance import move_payloads as run

    sizes: list[int] = []
    try:
        run(to, progress=sizes.append)
    except (SettingsUnusable, Refusal, LookupError) as error:
        if sizes:
            typer.echo(f"moved {len(sizes)} payloads before this error:", err=True)
        fail(error)
    except KeyboardInterrupt:
        interrupted(f"{len(sizes)} payloads are moved; repeat the command to move the remaining ones")
    typer.echo(f"moved {len(sizes)} payloads, {sum(sizes) / 2**20:.1f} MiB, to {to}")


@payloads.command("check")
def check_payloads(
    digests: Annotated[
        bool, typer.Option("--digests", help="Read all tensors in the store, and compare their digests.")
    ] = False,
) -> None:
    """Check that the store has every tensor; exit 1 if a tensor is missing, as after a restore.

    Reads the last byte of each tensor. With `--digests`, reads all bytes and reports replaced tensors too.
    """
    from coordinator.errors import Refusal, SettingsUnusable
    from coordinator.maintenance import check_payloads as run

    try:
        faults = run(digests=digests)
    except (SettingsUnusable, Refusal) as error:
        fail(error)
    for fault in faults:
        typer.echo(fault)
    if faults:
        raise typer.Exit(1)
    typer.echo(f"no payload is missing {'or replaced ' if digests else ''}in the store")


@payloads.command("take-over")
def take_over_payloads(
    store: Annotated[
        str | None, typer.Option(help="URL of the store.", show_default="TESSERA_PAYLOAD_STORE")
    ] = None,
    yes: Yes = False,
) -> None:
    """Make the database at TESSERA_DATABASE_URL the owner of its tensors' folder in a store.

    Needed after two databases with one signing key have used the same store, as after a restored backup:
    until then neither database moves or deletes tensors there. Before you run the command, stop the
    coordinator of the other database, or set another store for it. Two hours later, the coordinator deletes
    the objects that belong to no tensor of this database.
    """
    from coordinator.errors import Refusal, SettingsUnusable
    from coordinator.maintenance import take_over as run

    confirm(
        "all other coordinators with this signing key must have stopped using the store, or they "
        "lose tensors",
        yes=yes,
    )
    try:
        url = run(store)
    except (SettingsUnusable, Refusal) as error:
        fail(error)
    typer.echo(
        f"This database owns its folder in {url}; objects without a tensor are deleted after two hours."
    )


def ready(url: Url = DEFAULT_URL) -> None:
    """Check that a coordinator and its database are ready; exit 1 with the reason if not.

    For health checks of containers and load balancers.
    """
    for sentence in Coordinator(url, token="").check_readiness():
        typer.echo(f"warning: {sentence}", err=True)
