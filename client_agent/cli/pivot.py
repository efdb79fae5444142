"""Commands that use the pivot's model: make its alignment pack, and write anchor texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_agent.cli.console import Bars, clear_errors, configure_logging
from client_agent.errors import AlignmentImpossible, CoordinatorUnreachable, OutputUnwritable, PlanUnusable
from schemas.user_files import require_writable_file

pivot = typer.Typer()


@pivot.command("make-pivot-pack")
def make_pivot_pack(
    federation: Annotated[str, typer.Argument(help="Id or name of the federation.")],
    model: Annotated[str, typer.Argument(help="The pivot: a folder, .gguf file or hub id.")],
    token: Annotated[
        str,
        typer.Option(
            envvar=["TESSERA_TOKEN", "TESSERA_ADMIN_TOKEN"], help="Bearer token of an operator or admin."
        ),
    ],
    url: Annotated[
        str, typer.Option(envvar="TESSERA_URL", help="URL of the coordinator.")
    ] = "http://127.0.0.1:8000",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")] = "auto",
) -> None:
    """Make the pivot's alignment pack and store it as an operator; all packs of other base models need it.

    Clients of the pivot's base model make the pack by themselves. Replacing a stored pack invalidates all
    packs that were made with it, and the weights that were trained with those packs.
    """
    with clear_errors(), Bars() as bars:
        configure_logging()
        import httpx

        from client_agent.alignment.fit_packs import pivot_pack
        from client_agent.model.loading import load_base_model
        from client_agent.training.silo import device_named
        from client_agent.transport.admin_client import Operator
        from schemas.messages.alignment import Anchors
        from schemas.messages.federations import FederationPlan

        try:
            with Operator(url, token, is_local=False) as operator:
                federation = operator.federation_id(federation)
                path = f"/v1/federations/{federation}"
                plan = FederationPlan.model_validate(operator.get(path)["plan"])
                if plan.alignment is None or plan.alignment.frames == "random":
                    raise PlanUnusable(
                        f"{federation} uses no pivot pack; its plan has no alignment, or random frames"
                    )
                texts = Anchors.model_validate(operator.get(f"{path}/anchors")).anchors
                base = load_base_model(model, device=device_named(device))
                if base.slug != plan.alignment.pivot:
                    raise AlignmentImpossible(
                        f"{model} is {base.slug}, and the pivot of {federation} is {plan.alignment.pivot}; "
                        "pass the pivot model"
                    )
                chosen = texts[: plan.alignment.anchors]
                pack = pivot_pack(base, chosen, plan.adapter, plan.alignment, federation, progress=bars)
                stored = operator.put_tensors(f"{path}/alignments/{base.slug}", pack.to_body())
        except httpx.TransportError as error:
            raise CoordinatorUnreachable(url, type(error).__name__, 0.0) from error
    print(f"the pack of {base.slug} is stored: {stored['digest']}")


def _require_new(out: Path) -> None:
    """Check that a file can be written without overwriting another.

    Raises:
        OutputUnwritable: it exists, or its folder does not.
    """
    if out.exists():
        raise OutputUnwritable(f"--out: {out} exists already; remove it, or pass the name of a new file")
    require_writable_file(out, "--out")


@pivot.command("write-anchors")
def write_anchors(
    model_source: Annotated[
        str, typer.Argument(metavar="PIVOT", help="The pivot: a folder, .gguf file or hub id.")
    ],
    out: Annotated[Path, typer.Option(help="JSON file to write, for `tessera anchors put`.")],
    count: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of texts, as alignment.anchors of the plan.")
    ] = 1024,
    max_tokens: Annotated[
        int, typer.Option(min=4, max=512, help="Number of tokens after which a text is cut.")
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the texts.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")] = "auto",
) -> None:
    """Write the anchor texts for alignment with the pivot model, where no silo may share text.

    Reads nothing but the pivot's weights. Verify the texts with `tessera agent alignment-test`: a model that
    was trained on answers only, and never on questions, writes unusable texts.
    """
    with clear_errors(), Bars() as bars:
        configure_logging()
        # Before the model is loaded and hundreds of texts are generated.
        _require_new(out)
        from client_agent.alignment.generate_anchors import generate_anchors
        from client_agent.model.loading import load_base_model
        from client_agent.storage.files import write_durably
        from client_agent.training.silo import device_named
        from schemas.messages.alignment import Anchors

        model = load_base_model(model_source, device=device_named(device))
        texts = generate_anchors(
            model,
            count,
            seed=seed,
            max_tokens=max_tokens,
            progress=lambda done: bars("texts", done, count),
        )
        write_durably(out, Anchors(anchors=texts).model_dump_json(indent=1).encode())
    print(f"{out}: {count} texts by {model.slug}, for example {texts[0].prompt!r} + {texts[0].answer!r}")
    print(f"next: the operator runs tessera anchors put FEDERATION {out}")
