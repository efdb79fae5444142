"""The demo's figures: the verdict, the table, report.json and report.html."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from client_agent.transport.admin_client import Answer
from examples.demo.cast import ALONE, FEDERATED, Cast, Helpdesk
from examples.demo.federated import FederatedResult
from examples.demo.question import Answers
from examples.report_page import write_report
from schemas.messages.federations import FederationPlan

Side = Literal["bare", "alone", "federated"]
Verdict = Literal["ahead", "behind", "level", "mixed"]
SIDES: Final[tuple[Side, ...]] = ("bare", "alone", "federated")
HEADINGS: Final[Mapping[Side, str]] = {
    "bare": "bare model",
    "alone": "trained alone",
    "federated": "federated",
}
_LEVEL = 0.05
"""Mean losses that differ by less than this share are level: one draw of eight tickets decides no less."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Scores on a silo's held-out tickets: the loss, and how many were routed and answered word for word."""

    loss: float
    right: int
    tickets: int


@dataclass(frozen=True, slots=True)
class SiloFigures:
    """A silo and its figures by side."""

    silo: Helpdesk
    by_side: Mapping[Side, Figures]

    @property
    def disagrees(self) -> bool:
        """Whether the loss favours one of alone and federated, and the number of right tickets the other."""
        alone, federated = self.by_side["alone"], self.by_side["federated"]
        return (federated.loss - alone.loss) * (federated.right - alone.right) > 0


@dataclass(frozen=True, slots=True)
class Report:
    """All figures of a run of the demo; each comes from the agents' own scores."""

    seed: int
    seconds: float
    silos: Sequence[SiloFigures]
    federation: FederatedResult
    answers: Answers
    plan: FederationPlan

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides of this run: a quick one trains no silo alone."""
        return tuple(side for side in SIDES if side in self.silos[0].by_side)

    def mean_loss(self, side: Side) -> float:
        return statistics.fmean(silo.by_side[side].loss for silo in self.silos)

    def right(self, side: Side) -> int:
        return sum(silo.by_side[side].right for silo in self.silos)

    @property
    def tickets(self) -> int:
        return sum(silo.by_side["federated"].tickets for silo in self.silos)

    @property
    def silos_ahead(self) -> list[str]:
        return [s.silo.name for s in self.silos if s.by_side["federated"].loss < s.by_side["alone"].loss]

    @property
    def verdict(self) -> Verdict | None:
        """Compare the mean loss, which must not be contradicted by the number of right tickets."""
        if "alone" not in self.sides:
            return None
        alone, federated = self.mean_loss("alone"), self.mean_loss("federated")
        more_right = self.right("federated") - self.right("alone")
        if abs(federated - alone) < _LEVEL * alone:
            return "level"
        if federated < alone:
            return "ahead" if more_right >= 0 else "mixed"
        return "behind" if more_right <= 0 else "mixed"

    def document(self) -> Answer:
        """Return the report as JSON."""
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "plan": self.plan.model_dump(mode="json"),
            "silos": [asdict(silo) for silo in self.silos],
            "mean_loss": {side: self.mean_loss(side) for side in self.sides},
            "right": {side: self.right(side) for side in self.sides},
            "tickets": self.tickets,
            "verdict": self.verdict,
            "federation": asdict(self.federation),
            "answers": asdict(self.answers),
        }


def read(file: Path) -> Report:
    """Read the report.json of a run."""
    document = json.loads(file.read_bytes())
    return TypeAdapter(Report).validate_python({field.name: document[field.name] for field in fields(Report)})


def build(
    cast: Cast,
    alone: Mapping[str, Sequence[Answer]] | None,
    federation: FederatedResult,
    answers: Answers,
    seconds: float,
) -> Report:
    """Assemble the report of a run; in a quick one there is no training alone.

    The bare model is what training alone began with. Both other sides are what a silo ends with: the adapter
    after its last step alone, and the final weights of the federation.
    """
    silos = []
    for desk in cast.helpdesks:
        rounds = federation.scores[desk.name]
        by_side: dict[Side, Figures] = {"bare": _figures(rounds[0]["served"])}
        if alone is not None:
            by_side = {
                "bare": _figures(alone[desk.name][0]["served"]),
                "alone": _figures(alone[desk.name][-1]["trained"]),
            }
        silos.append(SiloFigures(desk, by_side | {"federated": _figures(rounds[-1]["final"])}))
    return Report(cast.seed, seconds, silos, federation, answers, cast.plan(FEDERATED))


def _figures(scores: Answer) -> Figures:
    match = scores["exact_match"]
    return Figures(scores["loss"]["value"], round(match["value"] * match["count"]), match["count"])


def last_line(report: Report) -> str:
    """Return the result in words."""
    if report.verdict is None:
        return (
            f"Everything worked, in {report.seconds:.0f} s. {report.plan.training.steps} steps on "
            f"{len(report.silos)} silos show nothing of what federating is worth: `make demo` does, in about "
            "10 minutes."
        )
    alone, federated = report.mean_loss("alone"), report.mean_loss("federated")
    losses = f"mean loss {federated:.3f} against {alone:.3f}"
    right = f"{report.right('federated')} of {report.tickets} tickets right against {report.right('alone')}"
    ahead = f"a lower loss in {len(report.silos_ahead)} of {len(report.silos)} silos"
    opening = {
        "ahead": "On this draw federating is ahead of training alone",
        "behind": "On this draw federating is BEHIND training alone: it did not help here",
        "level": "On this draw federating and training alone are level: it made no difference here",
        "mixed": "On this draw the figures disagree: loss and right tickets favour different sides",
    }[report.verdict]
    return f"{opening}: {losses}, {right}, {ahead}."


def notes(report: Report) -> list[str]:
    """Return what a reader should know about the figures: why some disagree, and what one draw is worth."""
    if report.verdict is None:
        return []
    return [
        *disagreements(report),
        "This is one draw of eight tickets per silo: `make demo SEED=1` draws others, and `tessera compare "
        "examples/studies/helpdesks.toml` compares three draws.",
    ]


def disagreements(report: Report) -> list[str]:
    """Return why loss and right tickets favour different sides, if they do in a silo."""
    names = [silo.silo.name for silo in report.silos if report.verdict is not None and silo.disagrees]
    if not names:
        return []
    return [
        f"In {', '.join(names)} loss and right tickets favour different sides: the loss counts how likely "
        "each word of the expected answer is, and a ticket is right only if the whole written answer is the "
        "same."
    ]


def table(report: Report) -> Table:
    """Return the figures as a table for a terminal."""
    result = Table(title="held-out tickets: loss, and how many were routed and answered word for word")
    result.add_column("silo")
    for side in report.sides:
        result.add_column(HEADINGS[side], justify="right")
    for silo in report.silos:
        result.add_row(label(silo.silo), *(cell(silo.by_side[side]) for side in report.sides))
    result.add_section()
    result.add_row("mean loss, sum of tickets", *(cell(total(report, side)) for side in report.sides))
    return result


def total(report: Report, side: Side) -> Figures:
    """Return the mean loss of all silos, and the sums of their tickets."""
    return Figures(report.mean_loss(side), report.right(side), report.tickets)


def label(desk: Helpdesk) -> str:
    return f"{desk.name} ({desk.scheme} scheme{', joins late' if desk.late else ''})"


def cell(figures: Figures) -> str:
    return f"{figures.loss:.3f}  {figures.right:2}/{figures.tickets}"


def write(report: Report, drawings: Mapping[str, str], folder: Path) -> Path:
    """Write report.json and report.html, and return the page's path."""
    return write_report(
        folder,
        report.document(),
        Path(__file__).with_name("report.html.j2"),
        report=report,
        sides=report.sides,
        headings=HEADINGS,
        label=label,
        choice=choice(report.answers),
        cell=cell,
        total=total,
        last_line=last_line(report),
        disagreements=disagreements(report),
        drawings=drawings,
        methods=(ALONE, FEDERATED),
    )


def choice(answers: Answers) -> str:
    """Return which ticket is shown."""
    ticket = f"held-out ticket of {answers.silo}"
    match answers.tried:
        case None:
            return f"The first {ticket}"
        case 1:
            return f"The first {ticket}; alone and federated name different departments"
        case tried:
            return f"The first {ticket} for which alone and federated name different departments (of {tried})"


def show_answers(report: Report, console: Console) -> None:
    """Print the ticket and its answers."""
    answers = report.answers
    console.print(f"\n{choice(answers)}: {answers.ticket}", soft_wrap=True, markup=False, highlight=False)
    for side in report.sides:
        text = " ".join(answers.by_side[side].split())
        console.print(f"  {HEADINGS[side] + ':':<15} {text}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"  {'its scheme:':<15} {answers.expected}", soft_wrap=True, markup=False, highlight=False)
