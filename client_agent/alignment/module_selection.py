"""Relative errors of fitted frames on whole pseudo-tasks, which decide the modules that a pack selects.

Per-token errors do not predict transfer (docs/explanation/alignment.md): P learns from a task's mean
gradient, M = sum_t g_t [A h_t; 1]^T.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from client_agent.alignment.anchor_responses import (
    Site,
    Text,
    batches_of,
    pseudo_task,
    run_batch,
    with_targets,
)
from client_agent.alignment.least_squares import Moments, Residual
from client_agent.alignment.token_matching import Progress
from client_agent.model.loading import BaseModel
from schemas.messages.alignment import Anchor

RIDGE_TASKS = 1.0
TASK_ANCHORS = 32
FITTING_TASKS = 48
HELD_OUT_TASKS = 16


@dataclass(frozen=True, slots=True)
class TaskFrames:
    """A model, its sites, A (r, d_in) by source, and B^T (r, d_out) by name, or None before B is fitted."""

    base: BaseModel
    sites: Sequence[Site]
    a: Mapping[str, Tensor]
    b: Mapping[str, Tensor] | None


def task_errors(
    model: TaskFrames,
    pivot: TaskFrames,
    anchors: Sequence[Anchor],
    seed: int,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Return the relative error of B_L^T M_L against B_S^T M_S on held-out pseudo-tasks, by (block, role).

    Each of the r + 1 columns of M is one regression row; B_L is fitted to pseudo-tasks for this measure only.
    """
    fits = {site.name: Moments() for site in model.sites}
    errors = {site.name: Residual() for site in model.sites}
    maps: dict[str, Tensor] = {}
    for task in range(FITTING_TASKS + HELD_OUT_TASKS):
        if task == FITTING_TASKS:
            maps = {name: moments.ridge(RIDGE_TASKS) for name, moments in fits.items()}  # (d_out, r)
        targets = pseudo_task(anchors, seed, task, TASK_ANCHORS)
        pivot_gradients = _mean_gradients(pivot, with_targets(pivot.base, anchors, targets))
        gradients = _mean_gradients(model, with_targets(model.base, anchors, targets))
        for name, m in gradients.items():  # (r + 1, d_out)
            y = pivot_gradients[name].to(m.device)  # (r + 1, r)
            if task < FITTING_TASKS:
                fits[name].add(m, y)
            else:
                errors[name].add(m @ maps[name], y)
        if progress is not None:
            progress("pseudo-tasks", task + 1, FITTING_TASKS + HELD_OUT_TASKS)
    return {name: residual.relative for name, residual in errors.items()}


def _mean_gradients(frames: TaskFrames, texts: Sequence[Text]) -> dict[str, Tensor]:
    """Compute M^T (r + 1, d_out) of one task by site, or M^T B (r + 1, r) if B is given."""
    sums: dict[str, Tensor] = {}
    for batch in batches_of(texts):
        result = run_batch(frames.base, frames.sites, batch)
        real = result.batch.attention.bool()
        for site in frames.sites:
            z = result.h[site.source][real].double() @ frames.a[site.source].T  # (n, r)
            z = torch.cat([z, z.new_ones(len(z), 1)], dim=1)  # (n, r + 1)
            g = result.g[site.name][real].double()  # (n, d_out)
            if frames.b is not None:
                g = g @ frames.b[site.name].T  # (n, r)
            m = z.T @ g
            sums[site.name] = sums[site.name] + m if site.name in sums else m
    return sums
