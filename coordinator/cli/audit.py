"""Read the audit log, and check that nothing in it was changed or taken out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.client import DEFAULT_URL, AsJson, Coordinator, Token, Url, give_up, print_json
from coordinator.cli.output import ago, print_table
from schemas.identity.documents import hash_of, is_signed
from schemas.identity.keys import KeyUnusable, public_key, thumbprint

Document = dict[str, Any]

KeptHead = Annotated[
    Path | None,
    typer.Option(
        "--head",
        help="A file that keeps the signed end of the log: what it names must still be there.",
        show_default=False,
    ),
]


def audit(
    head_file: KeptHead = None, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False
) -> None:
    """Show who let whom in, shut whom out or ran a federation; exit 1 if the chain is broken.

    The end of the chain is signed with the coordinator's key. Who writes the database can make another chain,
    and the coordinator signs that too: keep the end with --head, and what you saw cannot be replaced.
    """
    coordinator = Coordinator(url, token)
    entries, head = _chain(coordinator)
    hashes = _hashes(entries)
    key = str(coordinator.get("/v1/hello")["signing_key"])
    if head is not None:
        _check(head, hashes, key)
    if head_file is not None and head_file.exists():
        _check(_read(head_file), hashes, key)
    if head_file is not None and head is not None:
        head_file.write_text(json.dumps(head) + "\n", "utf-8")
    if as_json:
        print_json(entries)
        return
    print_table(
        ["number", "when", "event", "by", "about", "reason"],
        [
            (e["number"], ago(e["at"]), e["event"], e["actor"], e["subject"], e["reason"] or "")
            for e in entries
        ],
    )
    last = hashes[-1] if hashes else None
    typer.echo(f"{len(entries)} entries, unbroken; the last one's hash is {last}.")
    if head is not None:
        typer.echo(f"It is signed by the coordinator with the key of thumbprint {thumbprint(key)}.")


def _chain(coordinator: Coordinator) -> tuple[list[Document], Document | None]:
    """Read all entries, and the end of the log as the last page names it."""
    entries: list[Document] = []
    page = coordinator.get("/v1/audit")
    while True:
        entries.extend(page["items"])
        if page["next"] is None:
            return entries, page["head"]
        page = coordinator.get("/v1/audit", after=page["next"])


def _hashes(entries: list[Document]) -> list[str]:
    hashes: list[str] = []
    for number, entry in enumerate(entries, 1):
        if (entry["number"], entry["previous"]) != (number, hashes[-1] if hashes else None):
            give_up(f"the audit log is broken at entry {number}: something was changed or taken out")
        hashes.append(hash_of(entry))
    return hashes


def _check(head: Document, hashes: list[str], key: str) -> None:
    """Check that a signed end is the coordinator's own, and that its entry is in the log as it was."""
    try:
        is_own = is_signed("tessera-audit-v1", head, head.get("signature"), public_key(key))
    except KeyUnusable:
        is_own = False
    if not is_own:
        give_up("the end of the audit log is not signed with this coordinator's key")
    number = head["number"]
    if not 1 <= number <= len(hashes) or hashes[number - 1] != head["hash"]:
        give_up(f"the audit log was replaced: entry {number} is not the one that the coordinator signed")


def _read(file: Path) -> Document:
    try:
        head = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        give_up(f"{file} cannot be read: {error}")
    if not isinstance(head, dict) or not isinstance(head.get("number"), int):
        give_up(f"{file} does not hold the end of an audit log")
    return head
