"""Turn what the methods left behind into report.json, the page beside it, and the table at the end."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import jinja2
from rich.console import Console
from rich.table import Table

from client_agent.simulation.admin_client import Answer
from examples.demo import pictures
from examples.demo.federated import FederatedResult
from examples.demo.silos import FOUNDERS, LATECOMER, SILOS

LOCAL = ("local", "local_lora")
FEDERATED = ("fedavg", "fedmosaic_random_frames", "fedmosaic")
METHODS = (*LOCAL, *FEDERATED)

# Per method and silo: the scores of each round, {before: {...}, after: {...}}.
Scores = Mapping[str, Mapping[str, list[Answer]]]


def build(scores: Scores, federations: Mapping[str, FederatedResult], seconds: float) -> Answer:
    """Assemble the report: every figure in it comes from the agents' own held-out scores."""
    main = federations["fedmosaic"]
    return {
        "seconds": round(seconds, 1),
        "clients": [
            {
                "client": silo.name,
                "architecture": silo.architecture,
                "task": silo.task,
                "late_joiner": silo.late,
                "methods": {method: _of_client(scores[method][silo.name]) for method in METHODS},
            }
            for silo in SILOS
        ],
        "mean": {method: _over_founders(scores[method], statistics.fmean) for method in METHODS},
        "worst": {
            method: {
                "loss": _over_founders(scores[method], max)["loss"],
                "accuracy": _over_founders(scores[method], min)["accuracy"],
            }
            for method in METHODS
        },
        "late_joiner": {method: _of_client(scores[method][LATECOMER.name]) for method in METHODS},
        "in_cluster_mass": in_cluster_mass(main),
        "bytes_up_per_client_round": _bytes(main, "up"),
        "bytes_down_per_client_round": _bytes(main, "down"),
        "alignment": {
            pack["base_model"]: {key: pack[key] for key in ("alignment_set", "bytes", "selected", "errors")}
            for pack in main.packs
        },
        "relevance": {
            "clients": [main.clients[client] for client in main.relevance["clients"]],
            "matrix": main.relevance["relevance"],
            "similarity": main.relevance["similarity"],
        },
    }


def in_cluster_mass(federation: FederatedResult) -> float:
    """Return the mean over the six of the last round's relevance that falls on *other* clients of the task.

    What a client gives itself counts for nothing: a federation in which nobody listens to anybody has 0.
    """
    tasks = {silo.name: silo.task for silo in SILOS}
    columns = [federation.clients[client] for client in federation.relevance["clients"]]
    founders = {silo.name for silo in FOUNDERS}
    masses = [
        sum(w for name, w in zip(columns, row, strict=True) if tasks[name] == tasks[me] and name != me)
        for me, row in zip(columns, federation.relevance["relevance"], strict=True)
        if me in founders
    ]
    return statistics.fmean(masses)


def write(report: Answer, folder: Path) -> Path:
    """Write report.json and report.html, and give the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("report.html.j2")
    page = folder / "report.html"
    page.write_text(
        template.render(
            report=report, methods=METHODS, verdicts=verdicts(report), pictures=pictures.draw(report)
        )
    )
    return page


def show(report: Answer, console: Console) -> None:
    """Print the table, and what it says in words."""
    table = Table(title="exact match on held-out examples, after the last round")
    table.add_column("silo")
    for method in METHODS:
        table.add_column(method, justify="right")
    for client in report["clients"]:
        label = f"{client['client']} ({client['task']} on {client['architecture']}" + (
            ", joins late)" if client["late_joiner"] else ")"
        )
        table.add_row(label, *(f"{client['methods'][m]['accuracy']:.2f}" for m in METHODS))
    table.add_section()
    for name in ("mean", "worst"):
        table.add_row(f"{name} of the six", *(f"{report[name][m]['accuracy']:.3f}" for m in METHODS))
    console.print(table)
    for verdict in verdicts(report):
        console.print(verdict, soft_wrap=True)


def verdicts(report: Answer) -> list[str]:
    """Return the results as text."""
    mean, worst, late = report["mean"], report["worst"], report["late_joiner"]
    best_local = max(LOCAL, key=lambda method: mean[method]["accuracy"])
    ahead = mean["fedmosaic"]["accuracy"] - mean[best_local]["accuracy"]
    worst_local = max(worst[method]["accuracy"] for method in LOCAL)
    end_alone = max(late[method]["accuracy"] for method in LOCAL)
    rounds = len(late["fedmosaic"]["accuracy_by_round"])
    joined = late["fedmosaic"]["accuracy"]
    control = mean["fedmosaic_random_frames"]["accuracy"], worst["fedmosaic_random_frames"]["accuracy"]
    ahead_mean = mean["fedmosaic"]["accuracy"] - control[0]
    ahead_worst = worst["fedmosaic"]["accuracy"] - control[1]
    return [
        f"Relevance: {report['in_cluster_mass']:.3f} of the weight lies on other clients of the same task.",
        f"Alignment: against random frames {ahead_mean:+.3f} in the mean, {ahead_worst:+.2f} in the worst "
        "client. Established clients listen to peers of the identical base model, whose frames agree anyway.",
        f"Bytes per client and round: {report['bytes_up_per_client_round']:,} up, "
        f"{report['bytes_down_per_client_round']:,} down.",
        f"Late joiner: {late['fedmosaic']['accuracy_at_start']:.2f} before its first step and {joined:.2f} "
        f"after {rounds} rounds; alone {end_alone:.2f} after "
        f"{len(late['local']['accuracy_by_round'])} rounds: "
        f"{'ahead' if joined > end_alone else 'not ahead'} of local training's end.",
        f"FedMosaic is {_beside(ahead)} the better local method "
        f"({best_local}) in mean exact match, {mean['fedmosaic']['accuracy']:.3f} against "
        f"{mean[best_local]['accuracy']:.3f}; worst client {worst['fedmosaic']['accuracy']:.2f} against "
        f"{worst_local:.2f}.",
    ]


def _beside(ahead: float) -> str:
    if round(ahead, 3) == 0:
        return "level with"
    return f"{abs(ahead):.3f} {'ahead of' if ahead > 0 else 'behind'}"


def _of_client(rounds: list[Answer]) -> Answer:
    return {
        "loss": rounds[-1]["after"]["loss"],
        "accuracy": rounds[-1]["after"]["exact_match"],
        "accuracy_at_start": rounds[0]["before"]["exact_match"],
        "accuracy_by_round": [scores["after"]["exact_match"] for scores in rounds],
    }


def _over_founders(scores: Mapping[str, list[Answer]], gather: Callable[[list[float]], float]) -> Answer:
    last = [scores[silo.name][-1]["after"] for silo in FOUNDERS]
    return {
        "loss": gather([after["loss"] for after in last]),
        "accuracy": gather([after["exact_match"] for after in last]),
    }


def _bytes(federation: FederatedResult, direction: str) -> int:
    sizes = [c["bytes"][direction] for r in federation.rounds for c in r["clients"]]
    return round(statistics.fmean(sizes))
