"""Write public anchor texts in plain English, for studies on real models: anchors_english.json.

    python -m examples.studies.make_anchors

Each anchor is a prompt of a kind of task, and an answer; the sentences are composed from the lists below.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from schemas.maths.seeded_random import below
from schemas.messages.alignment import Anchor, Anchors

FILE = Path(__file__).parent / "anchors_english.json"
COUNT = 512

PEOPLE = ("The baker", "My neighbour", "A nurse", "The captain", "Our teacher", "An old farmer", "The pilot")
ACTS = ("repaired", "painted", "sold", "carried", "found", "borrowed", "described", "forgot")
THINGS = ("a wooden chair", "the blue lamp", "two heavy boxes", "an old map", "the broken clock", "a bicycle")
PLACES = ("in the garden", "near the station", "behind the school", "at the harbour", "beside the river")
TIMES = ("on Monday", "last winter", "before noon", "after the storm", "every evening", "two years ago")
FEELINGS = (
    ("pleased with it", "positive"),
    ("delighted by the service", "positive"),
    ("bored from the first minute", "negative"),
    ("angry about the noise", "negative"),
)
OPPOSITES = (("heavy", "light"), ("early", "late"), ("empty", "full"), ("loud", "quiet"), ("narrow", "wide"))

Draw = Callable[[tuple[str, ...]], str]


def anchors() -> Anchors:
    """Compose the anchors; always the same."""
    return Anchors(anchors=[_anchor(number) for number in range(COUNT)])


def _anchor(number: int) -> Anchor:
    drawn = iter(below(2**31, 16, "english anchors", number))

    def draw_word(words: tuple[str, ...]) -> str:
        return words[next(drawn) % len(words)]

    kind = _KINDS[number % len(_KINDS)]
    prompt, answer = kind(draw_word, next(drawn))
    return Anchor(id=f"english-{number:04}", prompt=prompt, answer=answer)


def _sentence(draw_word: Draw) -> tuple[str, str, str, str, str]:
    return draw_word(PEOPLE), draw_word(ACTS), draw_word(THINGS), draw_word(PLACES), draw_word(TIMES)


def _person(draw_word: Draw, number: int) -> tuple[str, str]:
    person, act, thing, place, time = _sentence(draw_word)
    return f"{person} {act} {thing} {place} {time}.\nQuestion: Who {act} {thing}?\nAnswer:", f" {person}"


def _place(draw_word: Draw, number: int) -> tuple[str, str]:
    person, act, thing, place, time = _sentence(draw_word)
    return f"{person} {act} {thing} {place} {time}.\nQuestion: Where was that?\nAnswer:", f" {place}"


def _feeling(draw_word: Draw, number: int) -> tuple[str, str]:
    person, act, thing, _, time = _sentence(draw_word)
    feeling, label = FEELINGS[number % len(FEELINGS)]
    sentence = f"{person} {act} {thing} {time} and was {feeling}."
    return f"{sentence}\nIs it positive or negative?\nAnswer:", f" {label}"


def _follows(draw_word: Draw, number: int) -> tuple[str, str]:
    person, act, thing, place, time = _sentence(draw_word)
    label = ("entailment", "neutral", "contradiction")[number % 3]
    claim = {
        "entailment": f"{person} {act} something",
        "neutral": f"{person} {act} {thing} because it was cheap",
        "contradiction": f"Nobody {act} anything {place}",
    }[label]
    premise = f"Premise: {person} {act} {thing} {place} {time}.\nHypothesis: {claim}.\n"
    return f"{premise}Is it entailment, neutral or contradiction?\nAnswer:", f" {label}"


def _opposite(draw_word: Draw, number: int) -> tuple[str, str]:
    first, second = OPPOSITES[number % len(OPPOSITES)]
    others = [pair[1] for pair in OPPOSITES if pair[0] != first]
    options = [others[number % 4], second] if number % 2 else [second, others[number % 4]]
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip("AB", options, strict=True))
    question = f"Question: What is the opposite of {first}, said of {draw_word(THINGS)}?"
    return f"{question}\n{listed}\nAnswer:", f" {second}"


def _order(draw_word: Draw, number: int) -> tuple[str, str]:
    person, act, thing, place, time = _sentence(draw_word)
    return (
        f"Write the sentence again and begin with the time.\n{person} {act} {thing} {place} {time}.\nOutput:",
        f" {time[0].upper()}{time[1:]} {person[0].lower()}{person[1:]} {act} {thing} {place}.",
    )


def _count(draw_word: Draw, number: int) -> tuple[str, str]:
    first, second = 2 + number % 17, 3 + number // 17 % 23
    person = draw_word(PEOPLE)
    return (
        f"Question: {person} has {first} apples and buys {second} more. How many are there?\nAnswer:",
        f" {first} + {second} = {first + second}\n#### {first + second}",
    )


_KINDS = (_person, _place, _feeling, _follows, _opposite, _order, _count)


if __name__ == "__main__":
    FILE.write_text(anchors().model_dump_json(indent=0) + "\n", "utf-8")
    print(f"{FILE}: {COUNT} anchors")
