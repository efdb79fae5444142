"""The options of `tessera federation create`, each of which overrides a field of the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PlanFile = Annotated[
    Path | None, typer.Option(help="JSON file with the plan; the other options override its fields.")
]
Name = Annotated[str | None, typer.Option(help="Name of the federation; required unless the plan has one.")]
Strategy = Annotated[
    str | None,
    typer.Option(
        help="Strategy, such as fedmosaic or fedavg; required unless the plan has one. An unknown name "
        "prints all names; docs/explanation/strategies.md describes each strategy."
    ),
]
StrategyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Option of the strategy, such as temperature=0.5; repeatable."),
]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.", show_default="10")]
MinClients = Annotated[
    int | None,
    typer.Option(help="Number of clients that a round waits for.", show_default="2; fed_vemoe: 5"),
]
Quorum = Annotated[
    int | None,
    typer.Option(
        help="Number of updates with which a round is published at its deadline.",
        show_default="--min-clients",
    ),
]
CollectSeconds = Annotated[
    float | None, typer.Option(help="Seconds from a round's start to its deadline.", show_default="3600")
]
Rank = Annotated[
    int | None,
    typer.Option(help="Rank of P and Q, or of an ordinary LoRA.", show_default="the strategy's"),
]
SameArchitectureRank = Annotated[
    int | None,
    typer.Option(
        help="Rank of the LoRA that travels beside P and Q; 0 for none.", show_default="the strategy's"
    ),
]
Pivot = Annotated[
    str | None,
    typer.Option(
        help="Slug of the small model to which base models are aligned; `tessera agent check` prints it."
    ),
]
TargetModules = Annotated[
    str | None,
    typer.Option(
        metavar="b0.v,b1.o,...",
        help="Modules with P and Q, separated by commas. `tessera alignment list` prints the modules that "
        "the base models of a federation can share.",
        show_default="all blocks and roles",
    ),
]
Steps = Annotated[
    int | None, typer.Option(help="Optimiser steps of each client per round.", show_default="20")
]
