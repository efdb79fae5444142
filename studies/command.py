"""`tessera compare`: compare methods over the same silos, seeds and local steps."""

from __future__ import annotations

import os
import re
from collections import Counter
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from client_agent.cli.console import Json, clear_errors

if TYPE_CHECKING:
    from studies.compare import Comparison
    from studies.engines import Engine
    from studies.report.summary import Report
    from studies.study import Study
from studies.interrupts import answer_at_once

compare = typer.Typer()

_INTERRUPTED = 130
_EXAMPLE_LISTS = {"--methods": "local,fedmosaic", "--seeds": "0,1,2"}
_SEED = re.compile("0|[1-9][0-9]*")
_REPORT_EXTRA = ("jinja2", "matplotlib")


class EngineName(StrEnum):
    """The engine on which the runs of a comparison take place."""

    PROCESSES = "processes"
    RAY = "ray"


_Data = Annotated[Path | None, typer.Option(help="Folder of the study's data.", show_default="the study's")]
_Models = Annotated[
    Path | None, typer.Option(help="Folder of the study's models.", show_default="the study's")
]
_Out = Annotated[Path | None, typer.Option(help="Output folder.", show_default="runs/ and the study's name")]
_Seeds = Annotated[
    str | None, typer.Option(help="Comma-separated seeds, such as 0,1,2.", show_default="the study's")
]
_Methods = Annotated[
    str | None,
    typer.Option(help="Comma-separated methods, such as local,fedmosaic.", show_default="the study's"),
]
_Examples = Annotated[
    int | None, typer.Option(min=1, help="Number of training examples per silo.", show_default="the study's")
]
_Tests = Annotated[
    int | None,
    typer.Option(min=1, help="Largest number of test examples per silo.", show_default="the study's"),
]
_Copies = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of silos for each silo that has `copies` in the study.",
        show_default="the study's",
    ),
]
_Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of parallel runs.", show_default="one per core")
]
_EngineOption = Annotated[
    EngineName, typer.Option(help="Where runs take place: processes of this machine, or actors on Ray.")
]
_Address = Annotated[
    str | None,
    typer.Option(
        help="Address of a running Ray cluster, such as auto.",
        show_default="one on this machine, for this command",
    ),
]
_GpusPerWorker = Annotated[float, typer.Option(min=0, help="Share of a GPU for each worker on Ray.")]
_SiloWorkers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of workers on Ray that divide the silos of each run. Each worker loads the base models "
        "of its silos once, and takes --gpus-per-worker of a GPU.",
        show_default="a run is one worker",
    ),
]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Discard earlier results and run everything again.")]
_Paper = Annotated[
    Path | None,
    typer.Option(help="Folder for PDF figures and a LaTeX table.", show_default="none are written"),
]


def commands(app: typer.Typer) -> None:
    """Add `tessera compare` to `tessera`."""
    app.add_typer(compare)


@compare.command(name="compare")
def compare_methods(
    study: Annotated[Path, typer.Argument(help="TOML file of the study: its silos, data and methods.")],
    data: _Data = None,
    models: _Models = None,
    out: _Out = None,
    seeds: _Seeds = None,
    methods: _Methods = None,
    examples: _Examples = None,
    tests: _Tests = None,
    copies: _Copies = None,
    workers: _Workers = None,
    engine: _EngineOption = EngineName.PROCESSES,
    address: _Address = None,
    gpus_per_worker: _GpusPerWorker = 0,
    silo_workers: _SiloWorkers = None,
    fresh: _Fresh = False,
    paper: _Paper = None,
    as_json: Json = False,
) -> None:
    """Run methods with a real coordinator and real agents, and compare them.

    Writes report.json, tables and, with the extra `report`, report.html and pictures into the output folder.
    Safe to interrupt with Ctrl-C: the same command resumes.

    Examples:

    - `tessera compare study.toml`

    - `tessera compare study.toml --methods local_lora,fedmosaic --seeds 0,1,2 --out runs/first`
    """
    with clear_errors():
        from studies.compare import Comparison

        # Before the study is read, which may take minutes: a wrong option is refused at once.
        chosen = _engine(engine, address, workers, gpus_per_worker, silo_workers or 0)
        planned = _planned(study, data, models, copies, examples, tests)
        comparison = Comparison.planned(planned, out, _names(methods), _numbers(seeds), _print)
        # Two commands on one folder would delete each other's runs.
        with comparison.claimed():
            if fresh:
                comparison.forget()
            _run(comparison, chosen)
            # Also with runs missing: what is there is shown, and the exit status says that it is not all.
            if comparison.results():
                _report(comparison, comparison.reported(), as_json, paper)
            missing = comparison.missing()
    if missing:
        message = f"{len(missing)} of {len(comparison.runs)} runs are missing; repeat the command to run them"
        Console(stderr=True).print(message, soft_wrap=True, highlight=False)
        raise typer.Exit(1)


def _planned(
    study: Path,
    data: Path | None,
    models: Path | None,
    copies: int | None,
    examples: int | None,
    tests: int | None,
) -> Study:
    """Read a study with the amounts of the command line."""
    from studies.study import Study

    planned = Study.from_toml(study, data=data, models=models, copies=copies)
    if examples is not None:
        planned = planned.with_examples(examples)
    return planned if tests is None else planned.with_tests(tests)


def _engine(
    name: EngineName, address: str | None, workers: int | None, gpus_per_worker: float, silo_workers: int
) -> Engine:
    from studies.engines import ProcessEngine
    from studies.ray_engine import RayEngine

    if name is EngineName.PROCESSES:
        ray_options = {
            "--address": address,
            "--gpus-per-worker": gpus_per_worker,
            "--silo-workers": silo_workers,
        }
        for option, value in ray_options.items():
            if value:
                raise typer.BadParameter(
                    "only with --engine ray; add it, or leave this option out", param_hint=option
                )
        return ProcessEngine(workers or os.cpu_count() or 1)
    if address is not None and workers is None:
        raise typer.BadParameter(
            "missing; with --address, pass the number of runs that the cluster has room for",
            param_hint="--workers",
        )
    workers = workers or max(1, (os.cpu_count() or 1) // max(1, silo_workers))
    return RayEngine(workers, address, gpus_per_worker, silo_workers)


def _run(comparison: Comparison, engine: Engine) -> None:
    from studies.progress import ProgressDisplay

    # Both end the workers and keep what is finished, as a scheduler's time limit needs.
    answer_at_once()
    console = Console(stderr=True)
    try:
        with ProgressDisplay(console, comparison, engine.workers) as teller:
            comparison.run(engine, teller)
    except KeyboardInterrupt:
        planned = len(comparison.runs)
        done = planned - len(comparison.missing())
        console.print(
            f"interrupted: {done} of {planned} runs are finished and stored in {comparison.out}; "
            "repeat the command to run the remaining ones",
            soft_wrap=True,
            highlight=False,
        )
        raise typer.Exit(_INTERRUPTED) from None


def _report(comparison: Comparison, report: Report, as_json: bool, paper: Path | None) -> None:
    from studies.report.tables import show

    file = comparison.out / "report.json"
    if as_json:
        print(report.model_dump_json(indent=1))
    else:
        show(report, Console())
    # After the runs: hours of results must not be lost for a missing extra.
    missing_packages = [name for name in _REPORT_EXTRA if find_spec(name) is None]
    if missing_packages:
        message = (
            f"results: {file}; for report.html, pictures and --paper, run in a clone of Tessera: "
            "pip install '.[report]'"
        )
    else:
        from studies.report.page import write_page
        from studies.report.pictures import write_paper, write_pictures

        page = comparison.out / "report.html"
        write_page(report, page)
        pictures = write_pictures(report, comparison.out)
        message = f"results: {file}; charts: {page}, {', '.join(picture.name for picture in pictures)}"
        if paper is not None:
            message += f"; paper: {', '.join(str(written) for written in write_paper(report, paper))}"
    Console(stderr=True).print(message, soft_wrap=True, highlight=False)


def _print(line: str) -> None:
    Console(stderr=True).print(line, soft_wrap=True, highlight=False, markup=False)


def _names(text: str | None, option: str = "--methods") -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise typer.BadParameter(
            f"{text!r} has an empty item; write a list such as {_EXAMPLE_LISTS[option]}", param_hint=option
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise typer.BadParameter(f"{repeated[0]} is repeated in {text!r}; name it once", param_hint=option)
    return names


def _numbers(text: str | None) -> list[int] | None:
    names = _names(text, "--seeds")
    if names is None:
        return None
    if not all(_SEED.fullmatch(name) for name in names):
        raise typer.BadParameter(
            f"{text!r} is not a list of seeds; write whole numbers from 0 on, such as 0,1,2",
            param_hint="--seeds",
        )
    return [int(name) for name in names]
