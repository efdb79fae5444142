"""The results of a scene: bank_scene.json, expert_utilization.png, and the closing lines."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from examples.bank_scene.record import Record
from studies.report.experts_charts import utilization_of

RECORD: Final = "bank_scene.json"
PICTURE: Final = "expert_utilization.png"
_DOTS_PER_INCH = 110


def write(record: Record, out: Path) -> None:
    """Write the record and the picture."""
    (out / RECORD).write_text(record.model_dump_json(indent=1))
    figure = utilization_of([(f"one scene, seed {record.seed}", record.bank)])
    figure.savefig(out / PICTURE, dpi=_DOTS_PER_INCH, metadata={"Software": ""})


def closing(record: Record, out: Path) -> str:
    """Return the last lines: the end of each group, and where the files are."""
    last = len(record.rounds)
    groups = "; ".join(
        f"{group} on {', '.join(map(str, record.experts_of(group, last)))}" for group in record.present(last)
    )
    return (
        f"{record.seconds:.0f} s, {last} rounds, {len(record.bank.events)} changes of the bank. At the end: "
        f"{groups}.\nFigures: {out / RECORD}. Picture: {out / PICTURE}"
    )
