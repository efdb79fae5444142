"""The operator's commands over HTTP: they need httpx and rich, and nothing of the service itself."""

from __future__ import annotations

import typer


def commands(app: typer.Typer) -> None:
    """Add the groups of commands that talk to a coordinator."""
    from coordinator.operator import alignments, audit, federations, people, rounds
    from coordinator.operator.api import all_over_http, over_http

    panel = "Operator"
    app.add_typer(all_over_http(federations.app), name="federation", rich_help_panel=panel)
    app.add_typer(all_over_http(people.tokens), name="token", rich_help_panel=panel)
    app.add_typer(all_over_http(people.enrolments), name="enrolment", rich_help_panel=panel)
    app.add_typer(all_over_http(people.clients), name="client", rich_help_panel=panel)
    app.add_typer(all_over_http(rounds.app), name="round", rich_help_panel=panel)
    app.command("audit", rich_help_panel=panel)(over_http(audit.audit))
    app.add_typer(all_over_http(alignments.anchors), name="anchors", rich_help_panel=panel)
    app.add_typer(all_over_http(alignments.alignments), name="alignment", rich_help_panel=panel)
