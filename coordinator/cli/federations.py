"""Commands for federations: create, show, start, pause, finish, remove."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.client import DEFAULT_URL, AsJson, Coordinator, Federation, Token, Url, fail, print_json
from coordinator.cli.federation_facts import ENDED, print_federation, round_of
from coordinator.cli.output import ago, fitting_table
from coordinator.cli.plan_options import (
    CollectSeconds,
    MinClients,
    Name,
    Pivot,
    PlanFile,
    Quorum,
    Rank,
    Rounds,
    SameArchitectureRank,
    Steps,
    Strategy,
    StrategyOption,
    TargetModules,
)
from schemas.command import Yes, confirm
from schemas.user_files import NotOneValue, parsed_json, read_text

app = typer.Typer(help="Manage federations: plans, states, claims.", no_args_is_help=True)


@app.command("create")
def create(
    plan: PlanFile = None,
    name: Name = None,
    strategy: Strategy = None,
    option: StrategyOption = None,
    rounds: Rounds = None,
    min_clients: MinClients = None,
    quorum: Quorum = None,
    collect_seconds: CollectSeconds = None,
    rank: Rank = None,
    same_architecture_rank: SameArchitectureRank = None,
    pivot: Pivot = None,
    target_modules: TargetModules = None,
    steps: Steps = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the id of the federation.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Create a federation.

    Fields that are missing from --plan and the other options get the values recommended for the strategy: for
    fedmosaic and fedavg an ordinary LoRA of rank 16, or, with a pivot, a same-architecture rank or target
    modules, P and Q with a LoRA of rank 8; for fed_vemoe also a secure sum of five members. Fields without a
    recommendation get their defaults, and each client searches for its learning rate. A plan cannot be
    changed after its federation has been created.

    Example: `tessera federation create --name clinics --strategy fedmosaic --rounds 20 --min-clients 4`
    """
    if quiet and as_json:
        fail("--quiet and --json exclude each other; use one of them")
    plan_fields = _read(plan) if plan is not None else {}
    changes = {
        "name": name,
        "strategy.name": strategy,
        "rounds.total": rounds,
        "rounds.min_clients": min_clients,
        "rounds.quorum": quorum,
        "rounds.collect_seconds": collect_seconds,
        "adapter.rank": rank,
        "adapter.same_architecture_rank": same_architecture_rank,
        "adapter.target_modules": _names(target_modules),
        "alignment.pivot": pivot,
        "training.steps": steps,
        **{f"strategy.options.{key}": value for key, value in map(_option, option or [])},
    }
    for path, value in changes.items():
        if value is not None:
            _put(plan_fields, path.split("."), value)
    from schemas.messages.recommendations import completed

    created = Coordinator(url, token).post("/v1/federations", completed(plan_fields))
    typer.echo(created["id"]) if quiet else _print(created, as_json)


@app.command("list")
def list_all(url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False) -> None:
    """List federations."""
    federations = list(Coordinator(url, token).pages("/v1/federations"))
    if as_json:
        print_json(federations)
        return
    if not federations:
        typer.echo("No federation yet; create one with `tessera federation create`.", err=True)
        return
    from rich.console import Console

    shown = fitting_table(
        ["id", "name", "strategy", "state", "round", "clients", "created"],
        [
            (
                f["id"],
                f["name"],
                f["plan"]["strategy"]["name"],
                f["state"],
                round_of(f),
                f["clients"]["enrolled"],
                ago(f["created_at"]),
            )
            for f in federations
        ],
        optional=("created", "strategy", "clients"),
    )
    Console().print(shown)


@app.command("show")
def show(
    federation: Federation,
    shows_plan: Annotated[
        bool, typer.Option("--plan", help="Also print the plan, alignment packs and claims.")
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show a federation: state, next command and counts; with --plan or --json also the plan and claims."""
    coordinator = Coordinator(url, token)
    view = coordinator.get(coordinator.federation(federation))
    print_json(view) if as_json else print_federation(view, shows_plan=shows_plan)


@app.command("start")
def start(federation: Federation, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False) -> None:
    """Open the first round of a federation, or resume it after a pause."""
    coordinator = Coordinator(url, token)
    _print(coordinator.post(f"{coordinator.federation(federation)}/start"), as_json)


@app.command("pause")
def pause(federation: Federation, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False) -> None:
    """Pause a federation: its current round completes, and no further round opens until `start`."""
    coordinator = Coordinator(url, token)
    _print(coordinator.post(f"{coordinator.federation(federation)}/pause"), as_json)


@app.command("finish")
def finish(
    federation: Federation,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Finish a federation permanently; a round that is not published is abandoned.

    Asks for confirmation on a terminal; elsewhere --yes is required.
    """
    coordinator = Coordinator(url, token)
    path = coordinator.federation(federation)
    view = coordinator.get(path)
    # Nothing changes for a finished federation, so that nothing is asked.
    if view["state"] != "finished":
        current = view["round"]
        is_open = current is not None and current["state"] not in ENDED
        abandoned = f", and round {current['number']} ({current['state']}) is abandoned" if is_open else ""
        confirm(f"{view['name']} ({view['id']}) ends for good: no further round opens{abandoned}", yes=yes)
    _print(coordinator.post(f"{path}/finish"), as_json)


@app.command("remove")
def remove(
    federation: Federation,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Remove a federation that was never started, with its enrolments, anchor texts and packs.

    Asks for confirmation on a terminal; elsewhere --yes is required.
    """
    coordinator = Coordinator(url, token)
    path = coordinator.federation(federation)
    view = coordinator.get(path)
    confirm(f"{view['name']} ({view['id']}) is removed with its clients and tokens", yes=yes)
    coordinator.delete(path)
    removed = {"id": view["id"], "removed": True}
    print_json(removed) if as_json else typer.echo(f"{view['id']} is removed.")


def _print(federation: dict[str, Any], as_json: bool) -> None:
    print_json(federation) if as_json else print_federation(federation)


def _read(path: Path) -> dict[str, Any]:
    try:
        plan = parsed_json(read_text(path))
    except OSError as error:
        fail(f"--plan: {path} cannot be read ({error.strerror}); pass the plan as a JSON file")
    except NotOneValue as error:
        fail(f"--plan: {path} cannot be used ({error}); correct the file")
    except ValueError as error:
        fail(f"--plan: {path} is not JSON ({error}); correct the file")
    if not isinstance(plan, dict):
        fail(f'--plan: {path} is not a JSON object; write a plan such as {{"name": "clinics", ...}}')
    return plan


def _option(text: str) -> tuple[str, Any]:
    """Parse `temperature=0.5`; a value that is not JSON is a string."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        fail(f"--option: {text!r} is not KEY=VALUE; write the name and the value, such as temperature=0.5")
    try:
        return key, parsed_json(value)
    except NotOneValue as error:
        fail(f"--option: {value} cannot be used ({error}); correct the value")
    # `--option mode=fast` needs no quotes around the value.
    except ValueError:
        return key, value


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] if text is not None else None


def _put(plan: dict[str, Any], path: list[str], value: object) -> None:
    for depth, part in enumerate(path[:-1], 1):
        plan = plan.setdefault(part, {})
        if not isinstance(plan, dict):
            fail(f"the plan's {'.'.join(path[:depth])} must be an object to set {path[-1]}; correct the plan")
    plan[path[-1]] = value
