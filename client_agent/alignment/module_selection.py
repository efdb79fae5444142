"""Measure how well two models agree on whole tasks, which decides what they can share.

Per-token errors cannot tell (fedmosaic.md section 3, step 4): what P learns from is a task's mean gradient,
M = sum_t g_t [A h_t; 1]^T. Knows no pack and no limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from client_agent.alignment.anchor_responses import Site, Text, answered, asked, batches_of, pseudo_task
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
    """A model, its sites, A (r, d_in) by source, and B^T (r, d_out) by name where it is known."""

    base: BaseModel
    sites: Sequence[Site]
    a: Mapping[str, Tensor]
    b: Mapping[str, Tensor] | None


def task_errors(
    own: TaskFrames,
    pivot: TaskFrames,
    anchors: Sequence[Anchor],
    seed: int,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Give per (block, role) the relative error of B_L^T M_L against B_S^T M_S on held-out pseudo-tasks.

    Each of the r + 1 columns of M is one row to fit; B_L is fitted to pseudo-tasks for this measure alone.
    """
    fits = {site.name: Moments() for site in own.sites}
    missed = {site.name: Residual() for site in own.sites}
    maps: dict[str, Tensor] = {}
    for task in range(FITTING_TASKS + HELD_OUT_TASKS):
        if task == FITTING_TASKS:
            maps = {name: moments.ridge(RIDGE_TASKS) for name, moments in fits.items()}  # (d_out, r)
        targets = pseudo_task(anchors, seed, task, TASK_ANCHORS)
        theirs = _mean_gradients(pivot, asked(pivot.base, anchors, targets))
        for name, m in _mean_gradients(own, asked(own.base, anchors, targets)).items():  # (r + 1, d_out)
            y = theirs[name].to(m.device)  # (r + 1, r)
            if task < FITTING_TASKS:
                fits[name].add(m, y)
            else:
                missed[name].add(m @ maps[name], y)
        if progress is not None:
            progress("pseudo-tasks", task + 1, FITTING_TASKS + HELD_OUT_TASKS)
    return {name: residual.relative for name, residual in missed.items()}


def _mean_gradients(frames: TaskFrames, texts: Sequence[Text]) -> dict[str, Tensor]:
    """Give M^T (r + 1, d_out) of one task by site, or M^T B (r + 1, r) where B is known."""
    sums: dict[str, Tensor] = {}
    for batch in batches_of(texts):
        result = answered(frames.base, frames.sites, batch)
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
