"""Operator commands: run the service, and administer it over HTTP.

All commands but those of `service` need only httpx and rich.
"""

from __future__ import annotations

import typer


def commands(app: typer.Typer) -> None:
    """Add the operator commands to `tessera`."""
    from coordinator.cli import alignments, audit, experts, federations, people, report, rounds, service
    from coordinator.cli.client import all_over_http, over_http

    service.commands(app)

    panel = "Operator"
    app.add_typer(all_over_http(federations.app), name="federation", rich_help_panel=panel)
    app.add_typer(all_over_http(people.enrolments), name="enrolment", rich_help_panel=panel)
    app.add_typer(all_over_http(people.clients), name="client", rich_help_panel=panel)
    app.add_typer(all_over_http(rounds.app), name="round", rich_help_panel=panel)
    app.command("experts", rich_help_panel=panel)(over_http(experts.experts))
    app.add_typer(all_over_http(people.tokens), name="token", rich_help_panel=panel)
    app.add_typer(all_over_http(alignments.anchors), name="anchors", rich_help_panel=panel)
    app.add_typer(all_over_http(alignments.alignments), name="alignment", rich_help_panel=panel)
    app.add_typer(report.app, name="report", rich_help_panel=panel)
    app.command("audit", rich_help_panel=panel)(over_http(audit.audit))
