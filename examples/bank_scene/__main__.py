"""The life of a bank of experts in one federation: separation, a birth, a merge, an end, a newcomer."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path

from client_agent.errors import AgentError
from examples.agents import MARK, DemoFailed, may_be_emptied
from examples.preloaded import preloaded


def main() -> int:
    """Play the scene; 1 if something did not work, or did not happen."""
    arguments = _arguments()
    out: Path = arguments.out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the agents and the coordinator as well
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).touch()
    try:
        with preloaded() as tessera:
            # These import torch, while the process that forks the agents does.
            from examples.bank_scene.cast import Cast
            from examples.bank_scene.checks import failures
            from examples.bank_scene.narration import Narrator
            from examples.bank_scene.play import play
            from examples.bank_scene.report import closing, write

            record = play(Cast.of(arguments.seed), out, tessera, Narrator())
    except (DemoFailed, AgentError) as error:
        print(f"the scene stopped: {error}", file=sys.stderr)
        return 1
    write(record, out)
    print(closing(record, out))
    missed = failures(record)
    for sentence in missed:
        print(f"NOT AS EXPECTED: {sentence}", file=sys.stderr)
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.bank_scene", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="draws other examples and starts")
    parser.add_argument("--out", type=Path, help="where to write (default: runs/bank-scene-SEED)")
    arguments = parser.parse_args()
    arguments.out = (arguments.out or Path("runs") / f"bank-scene-{arguments.seed}").absolute()
    if not may_be_emptied(arguments.out):
        parser.error(f"--out: {arguments.out} is there and no earlier scene's; name an empty folder")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
