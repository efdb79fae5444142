"""Make the pivot's alignment pack where no client of the federation has the pivot as its own model."""

from __future__ import annotations

from typing import Annotated

import typer

from client_agent.cli.console import Bars, be_quiet, clear_errors
from client_agent.errors import AlignmentImpossible, CoordinatorUnreachable, PlanUnusable

pivot = typer.Typer()


@pivot.command("make-pivot-pack")
def make_pivot_pack(
    federation: Annotated[str, typer.Argument(help="The federation's id.")],
    model: Annotated[str, typer.Argument(help="The pivot: a folder or a hub id.")],
    token: Annotated[
        str, typer.Option(envvar=["TESSERA_TOKEN", "TESSERA_ADMIN_TOKEN"], help="An operator's token.")
    ],
    url: Annotated[
        str, typer.Option(envvar="TESSERA_URL", help="Where the coordinator is.")
    ] = "http://127.0.0.1:8000",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")] = "auto",
) -> None:
    """Make the pivot's pack and store it as an operator; all other packs are made on it.

    Clients whose own model is the pivot make it by themselves. Of several packs the one that is stored last
    counts: replacing one ends all packs that were made on it, and what was learnt under them.
    """
    with clear_errors(), Bars() as bars:
        be_quiet()
        import httpx

        from client_agent.alignment.fit_packs import pivot_pack
        from client_agent.model.loading import load_base_model
        from client_agent.simulation.admin_client import Operator
        from client_agent.training.silo import device_named
        from schemas.messages.alignment import Anchors
        from schemas.messages.federations import FederationPlan

        path = f"/v1/federations/{federation}"
        try:
            with Operator(url, token) as operator:
                plan = FederationPlan.model_validate(operator.get(path)["plan"])
                if plan.alignment is None or plan.alignment.frames == "random":
                    raise PlanUnusable(f"{federation} makes no packs on a pivot's: there is nothing to make")
                texts = Anchors.model_validate(operator.get(f"{path}/anchors")).anchors
                base = load_base_model(model, device=device_named(device))
                if base.slug != plan.alignment.pivot:
                    raise AlignmentImpossible(
                        f"the pivot of {federation} is {plan.alignment.pivot}, and {model} is {base.slug}"
                    )
                chosen = texts[: plan.alignment.anchors]
                pack = pivot_pack(base, chosen, plan.adapter, plan.alignment, federation, progress=bars)
                stored = operator.put_tensors(f"{path}/alignments/{base.slug}", pack.to_body())
        except httpx.TransportError as error:
            raise CoordinatorUnreachable(url, type(error).__name__, 0.0) from error
    print(f"the pack of {base.slug} is stored: {stored['digest']}")
