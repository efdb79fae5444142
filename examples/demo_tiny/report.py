"""Make report.json, its page and the closing table from the results of all methods."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from client_agent.transport.admin_client import Answer
from examples.demo_tiny import pictures
from examples.demo_tiny.federated import FederatedResult
from examples.demo_tiny.silos import FOUNDERS, LATECOMER, SILOS
from examples.report_page import write_report

LOCAL = ("local", "local_lora")
FEDERATED = ("fedavg", "fedmosaic_random_frames", "fedmosaic")
METHODS = (*LOCAL, *FEDERATED)

# Per method and silo: the scores of each round, {served: {...}, trained: {...}, final: {...} at the end}.
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
                "methods": {method: _client_figures(scores[method][silo.name]) for method in METHODS},
            }
            for silo in SILOS
        ],
        "mean": {method: _over_founders(scores[method], statistics.fmean) for method in METHODS},
        "worst": {
            method: {
                "loss": _over_founders(scores[method], max)["loss"],
                "exact_match": _over_founders(scores[method], min)["exact_match"],
            }
            for method in METHODS
        },
        "late_joiner": {method: _client_figures(scores[method][LATECOMER.name]) for method in METHODS},
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
    """Write report.json and report.html, and return the page's path."""
    return write_report(
        folder,
        report,
        Path(__file__).with_name("report.html.j2"),
        report=report,
        methods=METHODS,
        verdicts=verdicts(report),
        cell=_cell,
        pictures=pictures.draw(report),
    )


def show(report: Answer, console: Console) -> None:
    """Print the table and the verdicts."""
    table = Table(title="loss and exact match on held-out examples, of what each silo ends with")
    table.add_column("silo")
    for method in METHODS:
        table.add_column(method, justify="right")
    for client in report["clients"]:
        label = f"{client['client']} ({client['task']} on {client['architecture']}" + (
            ", joins late)" if client["late_joiner"] else ")"
        )
        table.add_row(label, *(_cell(client["methods"][m]) for m in METHODS))
    table.add_section()
    for name in ("mean", "worst"):
        table.add_row(f"{name} of the six", *(_cell(report[name][m]) for m in METHODS))
    console.print(table)
    for verdict in verdicts(report):
        console.print(verdict, soft_wrap=True)


def _cell(figures: Answer) -> str:
    return f"{figures['loss']:.3f} ({figures['exact_match']:.2f})"


def verdicts(report: Answer) -> list[str]:
    """Return the results as text."""
    mean, worst, late = report["mean"], report["worst"], report["late_joiner"]
    best_local = min(LOCAL, key=lambda method: mean[method]["loss"])
    ours, theirs = mean["fedmosaic"], mean[best_local]
    worst_local = min(worst[method]["loss"] for method in LOCAL)
    end_alone = min(late[method]["loss"] for method in LOCAL)
    rounds = len(late["fedmosaic"]["loss_by_round"])
    joined = late["fedmosaic"]["loss"]
    control = "fedmosaic_random_frames"
    to_mean = ours["loss"] - mean[control]["loss"]
    to_worst = worst["fedmosaic"]["loss"] - worst[control]["loss"]
    return [
        f"Relevance: {report['in_cluster_mass']:.3f} of the weight lies on other clients of the same task.",
        f"Alignment: against random frames the loss is {_changed(to_mean)} in the mean and "
        f"{_changed(to_worst)} in the worst client. Established clients listen to peers of the "
        "identical base model, whose frames agree anyway.",
        f"Bytes per client and round: {report['bytes_up_per_client_round']:,} up, "
        f"{report['bytes_down_per_client_round']:,} down.",
        f"Late joiner: a loss of {late['fedmosaic']['loss_at_start']:.2f} before its first step and "
        f"{joined:.2f} after {rounds} rounds; alone {end_alone:.2f} after "
        f"{len(late['local']['loss_by_round'])} rounds: "
        f"{'ahead' if joined < end_alone else 'not ahead'} of local training's end.",
        f"FedMosaic is {_beside(theirs['loss'] - ours['loss'])} the better local method ({best_local}) in "
        f"mean loss, {ours['loss']:.3f} against {theirs['loss']:.3f}; worst client "
        f"{worst['fedmosaic']['loss']:.3f} against {worst_local:.3f}; exact match "
        f"{ours['exact_match']:.3f} against {theirs['exact_match']:.3f}. "
        "One draw of the examples: `tessera compare` tells the noise.",
    ]


def _changed(by: float) -> str:
    return "the same" if round(by, 3) == 0 else f"{abs(by):.3f} {'lower' if by < 0 else 'higher'}"


def _beside(ahead: float) -> str:
    if round(ahead, 3) == 0:
        return "level with"
    return f"{abs(ahead):.3f} {'ahead of' if ahead > 0 else 'behind'}"


def _client_figures(rounds: list[Answer]) -> Answer:
    return _end(rounds) | {
        "loss_at_start": rounds[0]["served"]["loss"]["value"],
        "loss_by_round": [scores["trained"]["loss"]["value"] for scores in rounds],
        "exact_match_by_round": [scores["trained"]["exact_match"]["value"] for scores in rounds],
    }


def _end(rounds: list[Answer]) -> Answer:
    """Return the figures of the final weights, or of the last trained adapter of a silo alone."""
    last = rounds[-1]["final"] or rounds[-1]["trained"]
    return {name: last[name]["value"] for name in ("loss", "exact_match")}


def _over_founders(scores: Mapping[str, list[Answer]], gather: Callable[[list[float]], float]) -> Answer:
    ends = [_end(scores[silo.name]) for silo in FOUNDERS]
    return {name: gather([end[name] for end in ends]) for name in ("loss", "exact_match")}


def _bytes(federation: FederatedResult, direction: str) -> int:
    sizes = [c["bytes"][direction] for r in federation.rounds for c in r["clients"]]
    return round(statistics.fmean(sizes))
