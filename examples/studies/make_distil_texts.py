"""Draw the public texts of the study `distil.toml`: prompts of the silos' tasks, and answers that are none.

    python -m examples.studies.make_distil_texts

No prompt is an example of a silo. Four random letters stand behind each, so that texts reveal no answer.
"""

import json
import random
from pathlib import Path
from typing import Final

from examples.tasks import LETTERS, TASKS, draw

NAMES: Final = ("cipher", "label")
TEXTS: Final = 32  # of each task
FILE: Final = Path(__file__).parent / "distil_texts.json"


def texts() -> list[dict[str, str]]:
    """Return the texts of all tasks in turn, so that the first ones are of all."""
    rng = random.Random("distil texts")
    prompts = [
        [example.prompt for example in draw(TASKS[name], TEXTS, rng, avoid=_examples(name))] for name in NAMES
    ]
    return [
        {"id": f"{name}-{place}", "prompt": prompt, "answer": "".join(rng.choices(LETTERS, k=4))}
        for place, row in enumerate(zip(*prompts, strict=True))
        for name, prompt in zip(NAMES, row, strict=True)
    ]


def _examples(task: str) -> set[str]:
    """Return the prompts that silos train on or are scored on."""
    files = (Path(__file__).parent / "data" / task).glob("*.jsonl")
    return {json.loads(line)["prompt"] for file in files for line in file.read_text().splitlines()}


def main() -> None:
    FILE.write_text(json.dumps({"anchors": texts()}, indent=1) + "\n")
    print(f"{FILE.name}: {len(texts())} texts")


if __name__ == "__main__":
    main()
