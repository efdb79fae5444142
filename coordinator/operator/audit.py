"""Read the audit log, and check that nothing in it was changed or taken out."""

from __future__ import annotations

import typer

from coordinator.operator.api import DEFAULT_URL, AsJson, Coordinator, Token, Url, give_up, print_json
from coordinator.operator.show import ago, print_table
from schemas.identity.documents import hash_of


def audit(url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False) -> None:
    """Show who let whom in, shut whom out or ran a federation; exit 1 if the chain is broken."""
    found = list(Coordinator(url, token).pages("/v1/audit"))
    before: str | None = None
    for number, entry in enumerate(found, 1):
        if (entry["number"], entry["previous"]) != (number, before):
            give_up(f"the audit log is broken at entry {number}: something was changed or taken out")
        before = hash_of(entry)
    if as_json:
        print_json(found)
        return
    print_table(
        ["number", "when", "event", "by", "about", "reason"],
        [(e["number"], ago(e["at"]), e["event"], e["actor"], e["subject"], e["reason"] or "") for e in found],
    )
    typer.echo(f"{len(found)} entries, unbroken; the last one's hash is {before}.")
