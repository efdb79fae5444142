"""Draw the pools of examples that the studies deal out to their silos.

    python -m examples.studies.make_data

A task's test items are none of its training examples, so every silo may be scored on any of them.
"""

import random
from pathlib import Path
from typing import Final

from examples.silos.make_silos import write_lines
from examples.tasks import CLIENT_TASKS, draw

TRAIN: Final = 600
TESTS: Final = 512  # many more than a silo is scored on, so that every seed scores on others


def main() -> None:
    """Write train.jsonl and test.jsonl of every client task."""
    for task in CLIENT_TASKS:
        pool = draw(task, TRAIN + TESTS, random.Random(f"studies:{task.name}"))
        folder = Path(__file__).parent / "data" / task.name
        write_lines(pool[TESTS:], folder / "train.jsonl")
        write_lines(pool[:TESTS], folder / "test.jsonl")
        print(f"{task.name}: {TRAIN} training examples, {TESTS} test items")


if __name__ == "__main__":
    main()
