"""Fit alignment packs: the frozen A, B under which P and Q have the same effect in every base model.

dL/dP = sum_t (B^T g_t)(A h_t)^T. So P transfers between two models only if both A h and B^T g agree on the
same text: both are fitted to the pivot's, in closed form (`pca-tok`,
docs/explanation/alignment.md). Equal inputs on one machine yield equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from client_agent.adapters.base import require_bare
from client_agent.adapters.frames import random_frames
from client_agent.alignment.anchor_responses import Site, Text, random_targets, sites_of, with_targets
from client_agent.alignment.least_squares import Moments, Residual
from client_agent.alignment.module_selection import TaskFrames, task_errors
from client_agent.alignment.pack import OFFSETS, Pack
from client_agent.alignment.token_matching import Progress, Responses, Rows, alignment_set, response_rows
from client_agent.errors import AlignmentImpossible
from client_agent.model.loading import BaseModel
from schemas.messages.alignment import AlignmentManifest, Anchor, PackErrors, random_set
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from schemas.wire.envelope import Array

RIDGE_A = 1e-2
RIDGE_B = 0.1
HELD_OUT_EVERY = 8  # every eighth anchor measures the error and is not fitted
FEWEST_ANCHORS = 64
_MOMENT_BYTES = 8 * 2**30  # upper bound on the moments of the blocks that share a pass


def pivot_pack(
    pivot: BaseModel,
    anchors: Sequence[Anchor],
    adapter_plan: AdapterPlan,
    plan: AlignmentPlan,
    federation_id: str,
    *,
    progress: Progress | None = None,
) -> Pack:
    """Build the pivot's pack: A and B are the principal directions of its inputs and output gradients.

    It selects every module with error 0, and contains the pivot's responses z = A h at every token and
    g = B^T dL/dh_O at every token with a target.

    Raises:
        AlignmentImpossible: too few anchors, or responses beyond float16.
        AdapterInPlace: the pivot carries an adapter.
    """
    texts = _texts(pivot, anchors, plan)
    r = adapter_plan.rank
    tensors: dict[str, Array] = {OFFSETS: _offsets(texts)}
    sites = sites_of(pivot, adapter_plan)
    for group in _groups(sites):
        inputs, gradients = _empty(group)
        for rows in response_rows(pivot, group, texts, progress, "pivot: directions"):
            _add(inputs, gradients, group, rows)
        a = {source: moments.principal(r) for source, moments in inputs.items()}  # (r, d_in)
        b = {name: moments.principal(r) for name, moments in gradients.items()}  # (r, d_out)
        z: dict[str, list[Tensor]] = {site.name: [] for site in group}
        g: dict[str, list[Tensor]] = {site.name: [] for site in group}
        # A second pass computes the responses again, because the inputs of all tokens do not fit into memory.
        for rows in response_rows(pivot, group, texts, progress, "pivot: responses"):
            for site in group:
                z[site.name].append(rows.h[site.source].double() @ a[site.source].T)
                g[site.name].append(rows.g[site.name].double() @ b[site.name].T)
        for site in group:
            tensors |= _frame_tensors(site, a[site.source], b[site.name])
            tensors[f"{site.name}.z"] = _half(site.name, z[site.name])
            tensors[f"{site.name}.g"] = _half(site.name, g[site.name])
    names = [site.name for site in sites]
    manifest = AlignmentManifest(
        federation=federation_id,
        recipe={},
        base_model=pivot.slug,
        alignment_set=alignment_set(pivot.slug, anchors, tensors, r),
        selected=names,
        errors={name: PackErrors(a=0, b_token=0, b_task=0) for name in names},
    )
    return Pack(tensors, manifest)


def aligned_pack(
    base: BaseModel,
    pivot: BaseModel,
    pivots_pack: Pack,
    anchors: Sequence[Anchor],
    adapter_plan: AdapterPlan,
    plan: AlignmentPlan,
    federation_id: str,
    *,
    progress: Progress | None = None,
) -> Pack:
    """Build another base model's pack: A h and B^T g are fitted to the pivot's responses by ridge regression.

    Errors are measured on held-out anchors and pseudo-tasks; a (block, role) is selected if its error on
    pseudo-tasks is below `plan.max_error`.

    Raises:
        AlignmentImpossible: too few anchors, or the pivot's pack was made from other anchors or weights.
        AdapterInPlace: one of the models carries an adapter.
    """
    require_bare(pivot)
    texts = _texts(base, anchors, plan)
    responses = Responses(pivot, pivots_pack, anchors, adapter_plan.rank, base.device)
    # By the anchor's number and not by chance, so that all clients of a base model hold out the same ones.
    fitting = [text for text in texts if text.anchor % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    held_out = [text for text in texts if text.anchor % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    tensors: dict[str, Array] = {}
    errors: dict[str, PackErrors] = {}
    pivot_sites = {site.name: site for site in sites_of(pivot, adapter_plan)}
    sites = [s for s in sites_of(base, adapter_plan) if f"{s.name}.z" in pivots_pack.tensors]
    for group in _groups(_as_in_pivot(sites, pivot_sites)):
        a, b = _fit(base, group, fitting, responses, progress)
        residuals = {site.name: (Residual(), Residual()) for site in group}
        for rows in response_rows(base, group, held_out, progress, "measuring", responses):
            for site in group:
                z, g = responses.z(site.name, rows.z_rows), responses.g(site.name, rows.g_rows)
                residuals[site.name][0].add(rows.h[site.source].double() @ a[site.source].T, z)
                residuals[site.name][1].add(rows.g[site.name].double() @ b[site.name].T, g)
        pivot_frames = responses.frames(group, pivot_sites, pivot.device)
        # Modules are selected by pseudo-tasks, since a small error by token did not mean that P and Q
        # transfer.
        by_task = task_errors(
            TaskFrames(base, group, a, None),
            TaskFrames(pivot, [pivot_sites[s.name] for s in group], *pivot_frames),
            anchors,
            plan.seed,
            progress,
        )
        for site in group:
            tensors |= _frame_tensors(site, a[site.source], b[site.name])
            in_a, in_b = residuals[site.name]
            errors[site.name] = PackErrors(a=in_a.relative, b_token=in_b.relative, b_task=by_task[site.name])
    manifest = AlignmentManifest(
        federation=federation_id,
        recipe={},
        base_model=base.slug,
        alignment_set=pivots_pack.manifest.alignment_set,
        selected=[name for name, error in errors.items() if error.b_task < plan.max_error],
        errors=errors,
    )
    return Pack(tensors, manifest)


def random_pack(base: BaseModel, adapter_plan: AdapterPlan, plan: AlignmentPlan, federation_id: str) -> Pack:
    """Build a pack of random frames from the seed: every module is selected, none is aligned."""
    frames = random_frames(base, adapter_plan, plan.seed)
    tensors: dict[str, Array] = {f"{name}.A": frame.A for name, frame in frames.items()}
    tensors |= {f"{name}.B": frame.B for name, frame in frames.items()}
    manifest = AlignmentManifest(
        federation=federation_id,
        recipe={},
        base_model=base.slug,
        alignment_set=random_set(plan, adapter_plan.rank),
        selected=list(frames),
        errors={},
    )
    return Pack(tensors, manifest)


def _as_in_pivot(sites: Sequence[Site], pivot_sites: Mapping[str, Site]) -> list[Site]:
    """Split the sources of sites where the pivot's differ, because one A is fitted per source."""
    sources = ((site, pivot_sites[site.name].source) for site in sites)
    return [replace(site, source=f"{site.source} {pivots_source}") for site, pivots_source in sources]


def _fit(
    base: BaseModel,
    group: Sequence[Site],
    texts: Sequence[Text],
    responses: Responses,
    progress: Progress | None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Fit A (r, d_in) by source and B^T (r, d_out) by name to the pivot's responses (steps 1 and 3)."""
    inputs, gradients = _empty(group)
    matched = 0
    for rows in response_rows(base, group, texts, progress, "fitting", responses):
        _add(inputs, gradients, group, rows, responses)
        matched += len(rows.g_rows)
    if not matched:
        raise AlignmentImpossible(
            f"no token of {base.slug} ends at the same character as a pivot token; choose another pivot"
        )
    # B gets more ridge than A: gradients of random targets are noisier than inputs.
    a = {source: moments.ridge(RIDGE_A).T for source, moments in inputs.items()}
    return a, {name: moments.ridge(RIDGE_B).T for name, moments in gradients.items()}


def _empty(group: Sequence[Site]) -> tuple[dict[str, Moments], dict[str, Moments]]:
    return {site.source: Moments() for site in group}, {site.name: Moments() for site in group}


def _add(
    inputs: Mapping[str, Moments],
    gradients: Mapping[str, Moments],
    group: Sequence[Site],
    rows: Rows,
    responses: Responses | None = None,
) -> None:
    # Sites with one source have the same z, so any of their names finds it.
    representative = {site.source: site.name for site in group}
    for source, moments in inputs.items():
        z = responses.z(representative[source], rows.z_rows) if responses is not None else None
        moments.add(rows.h[source], z)
    for name, moments in gradients.items():
        g = responses.g(name, rows.g_rows) if responses is not None else None
        moments.add(rows.g[name], g)


def _texts(base: BaseModel, anchors: Sequence[Anchor], plan: AlignmentPlan) -> list[Text]:
    require_bare(base)
    if len(anchors) < FEWEST_ANCHORS:
        raise AlignmentImpossible(
            f"{len(anchors)} anchors are too few to align on; ask the operator to set {FEWEST_ANCHORS} "
            "or more (1000 is recommended)"
        )
    return with_targets(base, anchors, dict(enumerate(random_targets(anchors, plan.seed))))


def _groups(sites: Sequence[Site]) -> Iterator[list[Site]]:
    """Group as many blocks as `_MOMENT_BYTES` allows for their moments; at least one."""
    group: list[Site] = []
    size = 0
    for block in sorted({site.block for site in sites}):
        members = [site for site in sites if site.block == block]
        needed = 8 * sum({s.source: s.d_in**2 for s in members}.values()) + 8 * sum(
            s.d_out**2 for s in members
        )
        # A pass over the texts serves all blocks of a group, so groups are as large as memory allows.
        if group and size + needed > _MOMENT_BYTES:
            yield group
            group, size = [], 0
        group, size = [*group, *members], size + needed
    if group:
        yield group


def _offsets(texts: Sequence[Text]) -> Array:
    return np.array([[x.anchor, *x.encoded.spans[t]] for x in texts for t in x.read], dtype=np.int32)


def _frame_tensors(site: Site, a: Tensor, b: Tensor) -> dict[str, Array]:
    return {f"{site.name}.A": _single(a), f"{site.name}.B": _single(b.T)}


def _single(values: Tensor) -> Array:
    return np.ascontiguousarray(values.float().cpu().numpy())


def _half(name: str, parts: Sequence[Tensor]) -> Array:
    # float16 halves the pack; the fit's error is far above its rounding.
    values = torch.cat(list(parts)).half().cpu().numpy()
    if not np.isfinite(values).all():
        raise AlignmentImpossible(f"the pivot's responses at {name} exceed float16; choose another pivot")
    return values
