"""Write the public texts of the study `real_two_bases.toml`: questions, and an answer that was drawn at random.

    python -m examples.studies.make_distil_questions

The questions are composed from the lists below, in the form of the study's prompts, and none is an example of a silo.
An answer is one of the study's options whatever its question asks for, so that the texts reveal no answer.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "distil_questions.json"
OPTIONS: Final = ("abbreviation", "entity", "description", "person", "place", "number")
"""The options of the study."""

THINGS: Final = ("telephone", "steam engine", "microscope", "bicycle", "compass", "printing press", "lighthouse")
COUNTRIES: Final = ("Peru", "Norway", "Kenya", "Vietnam", "Portugal", "Jordan", "Iceland")
ANIMALS: Final = ("a spider", "a horse", "an owl", "a salmon", "a camel", "a beetle", "a whale")
EVENTS: Final = ("rain", "an echo", "rust", "a rainbow", "the tides", "thunder", "frost")
SHORT: Final = ("NATO", "DNA", "UNESCO", "GPS", "HTML", "RSVP", "BBC")

QUESTIONS: Final = (
    ("Who invented the {}?", THINGS),
    ("Who was the first to own a {}?", THINGS),
    ("What company sold the first {}?", THINGS),
    ("How much did the first {} weigh?", THINGS),
    ("When was the {} invented?", THINGS),
    ("What is a {}?", THINGS),
    ("Where was the first {} built?", THINGS),
    ("What is the capital of {}?", COUNTRIES),
    ("Who governs {}?", COUNTRIES),
    ("How many people live in {}?", COUNTRIES),
    ("What river flows through {}?", COUNTRIES),
    ("What language is spoken in {}?", COUNTRIES),
    ("What is the largest city of {}?", COUNTRIES),
    ("What is the highest mountain of {}?", COUNTRIES),
    ("When did {} become independent?", COUNTRIES),
    ("How many legs does {} have?", ANIMALS),
    ("How long does {} live?", ANIMALS),
    ("What does {} eat?", ANIMALS),
    ("Where does {} sleep?", ANIMALS),
    ("What colour is {}?", ANIMALS),
    ("How does {} find its food?", ANIMALS),
    ("What causes {}?", EVENTS),
    ("How is {} measured?", EVENTS),
    ("Who was the first to explain {}?", EVENTS),
    ("Why is there {} in the evening?", EVENTS),
    ("What does {} stand for?", SHORT),
    ("When was {} founded or first described?", SHORT),
    ("Who gave {} its name?", SHORT),
)


def texts() -> list[dict[str, str]]:
    """Return the texts in an order that was drawn once, so that the first ones are of all kinds."""
    rng = random.Random("distil questions")
    questions = [form.format(word) for form, words in QUESTIONS for word in words]
    rng.shuffle(questions)
    return [
        {"id": f"question-{place}", "prompt": f"Question: {text}\nIt asks for a", "answer": f" {rng.choice(OPTIONS)}"}
        for place, text in enumerate(questions)
    ]


def main() -> None:
    FILE.write_text(json.dumps({"anchors": texts()}, indent=1) + "\n")
    print(f"{FILE.name}: {len(texts())} texts")


if __name__ == "__main__":
    main()
