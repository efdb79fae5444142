"""`make demo`: four helpdesks on a real language model, alone and as a federation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from client_agent.errors import AgentError
from examples.agents import INTERRUPTED, NOT_RESUMED, DemoFailed, make_room, may_be_emptied
from examples.preloaded import preloaded
from studies.interrupts import answer_at_once


def main() -> int:
    """Run the demo; 1 if something did not work."""
    arguments = _arguments()
    out: Path = arguments.out
    answer_at_once()
    make_room(out)
    console = Console()
    print("Loading PyTorch takes a few seconds.", flush=True)
    try:
        with preloaded() as tessera:
            from examples.demo.run import run  # imports torch, while the process that starts the agents does

            run(arguments, out, tessera, console)
    except (DemoFailed, AgentError) as error:
        console.print(f"the demo stopped: {error}", style="red", soft_wrap=True, markup=False)
        return 1
    except KeyboardInterrupt:
        print(NOT_RESUMED, file=sys.stderr)
        return INTERRUPTED
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="draws other tickets")
    parser.add_argument("--out", type=Path, help="where to write (default: runs/demo)")
    parser.add_argument(
        "--models", type=Path, default=Path("runs/models"), help="the folder of the base model"
    )
    parser.add_argument("--image", type=Path, help="write the picture to this file too")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only show that everything works: two silos, one round of two steps, nothing alone; a minute",
    )
    parser.add_argument("--keep-open", action="store_true", help="keep the page open at the end")
    arguments = parser.parse_args()
    if arguments.out is not None and not may_be_emptied(arguments.out):
        parser.error(f"--out: {arguments.out} is there and no earlier demo's; pass a new folder")
    name = "demo-quick" if arguments.quick else "demo"
    by_seed = Path("runs") / (name if arguments.seed == 0 else f"{name}-seed-{arguments.seed}")
    arguments.out = (arguments.out or by_seed).absolute()
    return arguments


if __name__ == "__main__":
    sys.exit(main())
