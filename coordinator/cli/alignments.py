"""Commands for anchor texts and alignment packs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.cli.client import DEFAULT_URL, AsJson, Coordinator, Federation, Token, Url, fail, print_json
from coordinator.cli.output import ago, print_facts, print_table, size
from schemas.command import Yes, confirm
from schemas.user_files import read_text

anchors = typer.Typer(
    help="Manage the public anchor texts on which base models are aligned.", no_args_is_help=True
)
alignments = typer.Typer(help="Manage alignment packs, one per base model.", no_args_is_help=True)


@anchors.command("put")
def put_anchors(
    federation: Federation,
    file: Annotated[Path, typer.Argument(help='JSON file: {"anchors": [{"id", "prompt", "answer"}, ...]}.')],
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Store the anchor texts of a federation."""
    try:
        body = read_text(file).encode()
    except OSError as error:
        fail(f"{file} cannot be read ({error.strerror}); pass a file of anchor texts")
    except ValueError as error:
        fail(f"{file} is not a file of anchor texts ({error})")
    # The file is sent as it is: parsing and writing it again would change its digest.
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    headers = {"Content-Type": "application/json", "Content-Digest": f"sha-256=:{digest}:"}
    coordinator = Coordinator(url, token)
    stored = coordinator.put(f"{coordinator.federation(federation)}/anchors", body, headers)
    if as_json or stored is not None:
        print_json(stored) if as_json else print_facts(stored)
    else:
        typer.echo("Stored.")


@alignments.command("list")
def list_alignments(
    federation: Federation, url: Url = DEFAULT_URL, token: Token = "", as_json: AsJson = False
) -> None:
    """List the alignment packs of a federation and their acceptance tests."""
    coordinator = Coordinator(url, token)
    path = coordinator.federation(federation)
    packs = list(coordinator.pages(f"{path}/alignments"))
    if as_json:
        print_json(packs)
        return
    print_table(
        ["base model", "shares", "worst error", "test", "size", "digest", "stored"],
        [
            (
                pack["base_model"],
                f"{len(pack['selected'])} of {len(pack['errors']) or len(pack['selected'])}",
                max(
                    (pack["errors"][name]["b_task"] for name in pack["selected"] if pack["errors"]),
                    default=None,
                ),
                pack["acceptance"]["verdict"] if pack["acceptance"] else "untested",
                size(pack["bytes"]),
                pack["digest"][:19],
                ago(pack["stored_at"]),
            )
            for pack in packs
        ],
    )
    plan = coordinator.get(path)["plan"]["alignment"] or {}
    sharing = [pack for pack in packs if _shares(pack, plan)]
    # With one base model that shares, there is nobody to share with.
    if len(sharing) > 1:
        typer.echo(_shared_modules(sharing))


def _shares(pack: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Whether a pack's clients share with those of other base models."""
    if pack["acceptance"]:
        return bool(pack["acceptance"]["verdict"] == "passed")
    return not plan["require_passed"] or pack["base_model"] == plan["pivot"]


def _shared_modules(packs: Sequence[Mapping[str, Any]]) -> str:
    everywhere = set[str].intersection(*(set(pack["selected"]) for pack in packs))
    shared = [name for name in packs[0]["selected"] if name in everywhere]
    if not shared:
        return "No module is shared by all packs in use; see `tessera alignment show`."
    return f"Shared by all base models that share: {','.join(shared)}"


@alignments.command("show")
def show(
    federation: Federation,
    base_model: Annotated[str, typer.Argument(help="Slug of the base model.")],
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show an alignment pack: held-out errors per (block, role), and its acceptance test both ways."""
    coordinator = Coordinator(url, token)
    packs = coordinator.pages(f"{coordinator.federation(federation)}/alignments")
    pack = next((pack for pack in packs if pack["base_model"] == base_model), None)
    if pack is None:
        fail(f"{federation} has no pack of {base_model}; list its packs with `tessera alignment list`")
    if as_json:
        print_json(pack)
        return
    selected = set(pack["selected"])
    print_table(
        ["module", "shared", "inputs", "gradients, per token", "per task"],
        [
            (name, "yes" if name in selected else "no", error["a"], error["b_token"], error["b_task"])
            for name, error in pack["errors"].items()
        ],
    )
    for direction in pack["acceptance"]["directions"] if pack["acceptance"] else []:
        typer.echo(
            f"from {direction['source']} to {direction['target']}, "
            f"{pack['acceptance']['steps']} further steps, mean ± standard error over pseudo-tasks"
        )
        print_table(["start", "loss", "exact match", "right ahead by", "p"], _endings(direction))
    typer.echo(pack["sharing"])


@alignments.command("delete")
def delete(
    federation: Federation,
    base_model: Annotated[str, typer.Argument(help="Slug of the base model.")],
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Delete an alignment pack; deleting the pivot's pack deletes all packs of the federation.

    Adapter states that were trained under a deleted pack no longer count, and the round in progress is
    abandoned. Agents of the base model create a new pack. Asks for confirmation on a terminal; elsewhere
    --yes is required.
    """
    coordinator = Coordinator(url, token)
    path = coordinator.federation(federation)
    confirm(
        f"the pack of {base_model} is deleted: adapter states that were trained under it no longer count, "
        "and the round in progress is abandoned",
        yes=yes,
    )
    coordinator.delete(f"{path}/alignments/{base_model}")
    deleted = {"base_model": base_model, "deleted": True}
    print_json(deleted) if as_json else typer.echo(f"The pack of {base_model} is deleted.")


def _endings(direction: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    from schemas.maths.paired_test import lead, spread

    right = direction["endings"]["right"]["loss"]
    for start, ending in direction["endings"].items():
        figures = (spread(ending[name]) for name in ("loss", "exact_match"))
        loss, exact_match = (f"{mean:.3f} ± {error:.3f}" for mean, error in figures)
        ahead = lead(ending["loss"], over=right)
        tested = (f"{ahead.mean:.3f} ± {ahead.error:.3f}", f"{ahead.chance:.2g}")
        yield start.replace("_", " "), loss, exact_match, *(tested if start != "right" else ("", ""))
