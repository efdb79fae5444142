"""Describe the secure sum of a round in a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sum_lines(summed: Mapping[str, Any] | None) -> list[str]:
    """Return a line for each session of a sum, and one for its result; [] for a round without a sum."""
    if summed is None:
        return []
    lines = [_session(session) for session in summed["sessions"]]
    if summed["counted"] is not None:
        lines.append(f"the sum has the updates of {summed['counted']} members{_losses(summed.get('losses'))}")
    return lines


def _session(session: Mapping[str, Any]) -> str:
    answered = ", ".join(f"{step} {members}" for step, members in session["answered"].items())
    reason = f" ({session['reason']})" if session["reason"] else ""
    return (
        f"{session['kind']} session {session['number']}: {session['state']}{reason}, {session['members']} "
        f"members{f'; answered: {answered}' if answered else ''}; {session['seconds']:.0f} s"
    )


def _losses(losses: Mapping[str, Any] | None) -> str:
    if losses is None:
        return ""
    means = ", ".join(f"{model} {loss['value']:.3f}" for model, loss in losses.items())
    return f"; mean loss: {means}"
