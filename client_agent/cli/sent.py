"""`tessera agent sent`: the requests of this agent to its coordinator, from its own log. Loads no model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_agent.cli.console import Config, Json, clear_errors, opened_settings
from client_agent.errors import OutputUnwritable
from schemas.user_files import require_writable_folder

if TYPE_CHECKING:
    from client_agent.transport.sent_log import SentRequest

sending = typer.Typer()

_FEDERATION = re.compile(r"^(/v1/federations/[^/]+)/")
_ID_LENGTH = 12


@sending.command()
def sent(
    config: Config = None,
    round_number: Annotated[
        int | None, typer.Option("--round", min=1, help="List only the requests of this round.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Folder for copies of the bodies that are still in the agent's folder."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the requests that this agent has sent: time, route, bytes and digest of every body.

    Reads the agent's own log and sends nothing. The agent writes a line before it sends a request, so
    requests that did not arrive are listed too. GET requests, which carry no data of the silo, are left out.

    Example: `tessera agent sent --config silo.toml --round 3`
    """
    with clear_errors(), opened_settings(config) as settings:
        if save is not None:
            require_writable_folder(save, "--save")
        from client_agent.transport.sent_log import SentLog

        entries = sorted(SentLog(settings.folder).entries(), key=lambda entry: entry.at)
        if round_number is not None:
            entries = [entry for entry in entries if entry.round == round_number]
        if as_json:
            print(json.dumps([asdict(entry) for entry in entries], indent=1))
        elif not entries:
            when = "has been sent yet" if round_number is None else f"was sent in round {round_number}"
            Console(stderr=True).print(f"nothing {when}", highlight=False)
        else:
            _show(entries)
        if save is not None:
            written = _save(entries, settings.folder, save)
            message = f"{written} bodies written to {save}; of the remaining ones only the digests are stored"
            Console(stderr=True).print(message, soft_wrap=True, highlight=False)


def _show(entries: Sequence[SentRequest]) -> None:
    """Print a table; the progress reports of a round are one row."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("time", no_wrap=True)
    table.add_column("what", min_width=len("enrolment"))
    table.add_column("request", no_wrap=True)
    table.add_column("bytes", no_wrap=True, justify="right")
    # The only column that a narrow terminal cuts: a prefix tells two bodies apart, and --json has the whole.
    table.add_column("sha-256", overflow="ellipsis", min_width=8)
    federation = next((match for entry in entries if (match := _FEDERATION.match(entry.route))), None)
    if federation is not None:
        table.caption = f"… is {federation.group(1)}; --json prints whole ids and digests"
        table.caption_justify = "left"
    reports: dict[int | None, list[SentRequest]] = {}
    for entry in entries:
        if entry.kind == "progress":
            reports.setdefault(entry.round, []).append(entry)
            continue
        table.add_row(
            _time(entry.at),
            entry.kind,
            _request(entry),
            f"{entry.bytes:,}",
            entry.sha256 or "-",
        )
    for _, round_reports in sorted(reports.items(), key=lambda item: item[0] or 0):
        total = sum(entry.bytes for entry in round_reports)
        table.add_row(
            _time(round_reports[-1].at),
            f"progress, {len(round_reports)}x",
            _request(round_reports[-1]),
            f"{total:,}",
            "-",
        )
    Console().print(table)


def _time(at: str) -> str:
    """Return month, day and time of a timestamp, as the log has it: `11-29 16:52:51`."""
    return at[5:19].replace("T", " ")


def _request(entry: SentRequest) -> Text:
    """Return method and route, without the federation and with long ids cut."""
    route = _FEDERATION.sub("…/", entry.route)
    parts = [f"{part[:_ID_LENGTH]}…" if len(part) > _ID_LENGTH + 4 else part for part in route.split("/")]
    return Text(f"{entry.method} {'/'.join(parts)}")


def _save(entries: Sequence[SentRequest], folder: Path, target: Path) -> int:
    """Write each body that the log or a file of the agent still has; return how many.

    Raises:
        OutputUnwritable: the target is no writable folder.
    """
    by_digest = {entry.sha256: entry for entry in entries if entry.sha256 is not None}
    bodies = {
        entry.sha256: entry.body.encode() for entry in entries if entry.sha256 and entry.body is not None
    }
    sizes = {entry.bytes for entry in by_digest.values()}
    for file in _files(folder):
        if file.stat().st_size in sizes:
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            if digest in by_digest:
                bodies[digest] = content
    try:
        target.mkdir(parents=True, exist_ok=True)
        for digest, content in bodies.items():
            entry = by_digest[digest]
            name = f"{entry.round or 0:06d}-{entry.kind.replace(' ', '-')}-{digest[:12]}"
            (target / name).write_bytes(content)
    except OSError as error:
        raise OutputUnwritable(f"--save: {target} is not a writable folder ({error.strerror})") from error
    return len(bodies)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of the federation and of its rounds, without the secrets of sums."""
    for pattern in ("*/*", "*/rounds/*/*"):
        yield from (file for file in sorted(folder.glob(pattern)) if file.is_file())
