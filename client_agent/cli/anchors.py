"""Make anchor texts where there are no public ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_agent.cli.bars import Bars
from client_agent.cli.opening import be_quiet, clear_errors
from client_agent.errors import OutputUnwritable

anchors = typer.Typer()


@anchors.command("write-anchors")
def write_anchors(
    pivot: Annotated[str, typer.Argument(help="The pivot: a folder or a hub id.")],
    out: Annotated[Path, typer.Option(help="The JSON file to write, for `tessera anchors put`.")],
    count: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many texts; the plan's alignment.anchors.")
    ] = 1024,
    max_tokens: Annotated[
        int, typer.Option(min=4, max=512, help="How long a text may be that the model does not end.")
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Draws the texts.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")] = "auto",
) -> None:
    """Have the pivot write the texts on which base models are aligned, where nobody may give any.

    Nothing is read but the pivot's weights. How good the texts are, `tessera agent alignment-test` tells: a
    model that was taught to answer only, and never to write a question, writes none that help.
    """
    with clear_errors(), Bars() as bars:
        be_quiet()
        if out.exists() or not out.absolute().parent.is_dir():
            raise OutputUnwritable(
                f"--out: {out} exists already, or its folder does not; give the name of a new file"
            )
        from client_agent.model.loading import load_base_model
        from client_agent.model.written_anchors import written_anchors
        from client_agent.round_folder import write_durably
        from client_agent.silo import device_named
        from schemas.messages.alignment import Anchors

        model = load_base_model(pivot, device=device_named(device))
        texts = written_anchors(
            model,
            count,
            seed=seed,
            max_tokens=max_tokens,
            progress=lambda done: bars("texts", done, count),
        )
        write_durably(out, Anchors(anchors=texts).model_dump_json(indent=1).encode())
    print(f"{out}: {count} texts that {model.slug} wrote, like {texts[0].prompt!r} + {texts[0].answer!r}")
