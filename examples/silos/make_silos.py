"""Draw the data of the example silos and the public anchors of the example federation.

    python examples/silos/make_silos.py                           what the repository holds
    python examples/silos/make_silos.py --seed 1 --out /tmp/one   the same federation, other samples

Silos of one task have disjoint examples, and nobody's training prompt is in anybody's test set.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.tasks import PUBLIC_TASKS, TASKS, Example, draw, mixture

# silo: (task, base model); grove joins late.
SILOS: Final[dict[str, tuple[str, str]]] = {
    "aster": ("cipher", "tiny-s"),
    "birch": ("cipher", "tiny-s"),
    "cedar": ("cipher", "tiny-l"),
    "delta": ("cipher", "tiny-l"),
    "elder": ("label", "tiny-s"),
    "fjord": ("label", "tiny-s"),
    "grove": ("cipher", "tiny-l"),
}


def draw_silos(
    tasks: Mapping[str, str], seed: int, examples: int, tests: int
) -> dict[str, tuple[list[Example], list[Example]]]:
    """Train and test examples of every silo in `tasks` (silo: task name); all prompts of a task differ.

    One seed gives the same test sets whatever `examples` is; a larger `examples` only adds to train sets.
    """
    drawn: dict[str, tuple[list[Example], list[Example]]] = {}
    for name in sorted(set(tasks.values())):
        members = [silo for silo, task in tasks.items() if task == name]
        rng = random.Random(f"silos:{name}:{seed}")
        pool = draw(TASKS[name], len(members) * (examples + tests), rng)
        for k, silo in enumerate(members):
            test, remaining = pool[k * tests : (k + 1) * tests], pool[len(members) * tests :]
            drawn[silo] = (remaining[k :: len(members)], test)
    return drawn


def draw_anchors(count: int, seed: int) -> list[dict[str, str]]:
    """Different public texts that every base model knows, tasks mixed evenly."""
    rng = random.Random(f"anchors:{seed}")
    result: dict[str, Example] = {}
    while len(result) < count:
        for example in mixture(PUBLIC_TASKS, count - len(result), rng):
            result.setdefault(example.prompt, example)
    return [
        {"id": f"a{i:04d}", "prompt": example.prompt, "answer": example.completion}
        for i, example in enumerate(result.values())
    ]


def write_lines(examples: Iterable[Example], target: Path) -> None:
    write(target, "".join(json.dumps(asdict(example)) + "\n" for example in examples))


def write(target: Path, text: str) -> None:
    """A reader finds the old file or the new one, never half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(target)


def arguments_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Draw train.jsonl and test.jsonl of every silo, and anchors.json."
    )
    parser.add_argument("--seed", type=int, default=0, help="of the samples (default 0)")
    parser.add_argument("--examples", type=int, default=12, help="training examples of a silo (default 12)")
    parser.add_argument("--tests", type=int, default=128, help="test items of a silo (default 128)")
    parser.add_argument(
        "--anchors", type=int, default=1024, help="public anchors; 0 writes none (default 1024)"
    )
    parser.add_argument("--out", type=Path, help="where the silo folders go (default: beside this script)")
    return parser.parse_args(words)


def main() -> None:
    arguments = arguments_of()
    block = Path(__file__).resolve().parent
    out: Path = arguments.out or block
    drawn = draw_silos(
        {silo: task for silo, (task, _) in SILOS.items()}, arguments.seed, arguments.examples, arguments.tests
    )
    for silo, (train, test) in drawn.items():
        write_lines(train, out / silo / "train.jsonl")
        write_lines(test, out / silo / "test.jsonl")
        task, model = SILOS[silo]
        print(f"{silo}: {task} on {model}, {len(train)} training examples, {len(test)} test items")
    if arguments.anchors:
        target = (arguments.out or block.parent) / "anchors.json"
        write(
            target, json.dumps({"anchors": draw_anchors(arguments.anchors, arguments.seed)}, indent=0) + "\n"
        )
        print(f"{target.name}: {arguments.anchors} anchors of the {len(PUBLIC_TASKS)} public tasks")


if __name__ == "__main__":
    main()
