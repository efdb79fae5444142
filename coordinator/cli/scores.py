"""Read scores in the answers of the HTTP API, for tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from schemas.messages.scores import LOSS, PERPLEXITY

ScoreSetJson = Mapping[str, Mapping[str, Any]]


def score(scores: ScoreSetJson | None, name: str) -> str | None:
    """Return a score in three decimals, as the dashboard page shows it; None without one."""
    if not scores or name not in scores:
        return None
    value = float(scores[name]["value"])
    return f"{value:.3f}" if value < 1000 else f"{value:.4g}"


def personal(scores: Mapping[str, Any]) -> ScoreSetJson:
    """Return the scores of a client's personal model: the final one if it keeps it, else the kept one."""
    final = scores["final"] if scores["final_kept"] else None
    result: ScoreSetJson = final or scores[scores["kept"]]
    return result


def losses(scores: Mapping[str, Any] | None) -> tuple[str | None, str | None, str | None, str | None]:
    """Return the loss as served and as trained, the name of the kept one, and the final loss."""
    if scores is None:
        return None, None, None, None
    served, trained, final = (score(scores[side], LOSS) for side in ("served", "trained", "final"))
    is_final_kept = final is not None and scores["final_kept"]
    return served, trained, "final" if is_final_kept else str(scores["kept"]), final


def mixing(scores: Mapping[str, Any] | None) -> str | None:
    """Return the change of the loss by mixing with its standard error; None if the client sent none."""
    change = scores["mixing"] if scores is not None else None
    if change is None:
        return None
    text = f"{change['value']:+.3f} ± {change['error']:.3f}"
    return text if abs(change["value"]) >= 2 * change["error"] else f"{text} (noise)"


def other_names(sets: Iterable[ScoreSetJson | None]) -> list[str]:
    """Return the names that occur beside loss and perplexity, in order."""
    return sorted({name for scores in sets if scores for name in scores} - {LOSS, PERPLEXITY})
