"""Read the audit log and verify its hash chain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.client import DEFAULT_URL, AsJson, Coordinator, Token, Url, fail, print_json
from coordinator.cli.output import ago, print_table
from schemas.identity.documents import hash_of, is_signed
from schemas.identity.keys import KeyUnusable, public_key, thumbprint
from schemas.user_files import FileUnusable, read_text, write_text

Document = dict[str, Any]

HeadFile = Annotated[
    Path | None,
    typer.Option(
        "--head",
        help="File for the signed head of the log. If it exists, its entry must still be in the log.",
        show_default=False,
    ),
]


def audit(
    head_file: HeadFile = None, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False
) -> None:
    """Show the audit log; exit 1 if its hash chain is broken.

    The head of the log is signed with the coordinator's key. An attacker with write access to the database
    could build another chain, which the coordinator would sign. Store the head with --head to detect entries
    that were replaced after they were shown.
    """
    coordinator = Coordinator(url, token)
    entries, head = _chain(coordinator)
    hashes = _hashes(entries)
    key = str(coordinator.get("/v1/hello")["signing_key"])
    if head is not None:
        _check(head, hashes, key)
    # A stored head is checked against the present log before it is replaced.
    if head_file is not None and head_file.exists():
        _check(_read(head_file), hashes, key)
    if head_file is not None and head is not None:
        try:
            write_text(head_file, json.dumps(head) + "\n", "--head")
        except FileUnusable as error:
            fail(str(error))
    if as_json:
        print_json(entries)
        return
    print_table(
        ["number", "when", "event", "by", "about", "reason"],
        [
            (e["number"], ago(e["at"]), e["event"], e["actor"], e["subject"], e["reason"] or "")
            for e in entries
        ],
        whole=("number", "when", "event"),
    )
    last = hashes[-1] if hashes else None
    typer.echo(f"{len(entries)} entries, chain intact; hash of the last entry: {last}.")
    if head is not None:
        typer.echo(f"Signed by the coordinator; key thumbprint: {thumbprint(key)}.")


def _chain(coordinator: Coordinator) -> tuple[list[Document], Document | None]:
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
            fail(
                f"the audit log is broken at entry {number}, which was changed or removed; compare with a "
                "backup"
            )
        hashes.append(hash_of(entry))
    return hashes


def _check(head: Document, hashes: list[str], key: str) -> None:
    """Check that a head is signed by the coordinator, and that its entry is unchanged."""
    try:
        is_own = is_signed("tessera-audit-v1", head, head.get("signature"), public_key(key))
    except KeyUnusable:
        is_own = False
    if not is_own:
        fail("the head of the audit log is not signed with this coordinator's key; check --url and --head")
    number = head["number"]
    if not 1 <= number <= len(hashes) or hashes[number - 1] != head["hash"]:
        fail(f"the audit log was replaced: entry {number} differs from the signed one; compare with a backup")


def _read(file: Path) -> Document:
    try:
        head = json.loads(read_text(file))
    except (OSError, ValueError) as error:
        fail(f"--head: {file} cannot be read ({error}); pass a file that `tessera audit --head` wrote")
    if not isinstance(head, dict) or not isinstance(head.get("number"), int):
        fail(f"--head: {file} is not the head of an audit log; pass a file that `tessera audit --head` wrote")
    return head
