"""The operator's commands over HTTP: they need httpx and rich, and nothing of the service itself."""

from __future__ import annotations

import typer


def commands(app: typer.Typer) -> None:
    """Add the groups of commands that talk to a coordinator."""
    from coordinator.operator import alignments, audit, federations, people, rounds

    panel = "Operator"
    app.add_typer(federations.app, name="federation", rich_help_panel=panel)
    app.add_typer(people.tokens, name="token", rich_help_panel=panel)
    app.add_typer(people.enrolments, name="enrolment", rich_help_panel=panel)
    app.add_typer(people.clients, name="client", rich_help_panel=panel)
    app.add_typer(rounds.app, name="round", rich_help_panel=panel)
    app.command("audit", rich_help_panel=panel)(audit.audit)
    app.add_typer(alignments.anchors, name="anchors", rich_help_panel=panel)
    app.add_typer(alignments.alignments, name="alignment", rich_help_panel=panel)
