"""Decide what the tiny example models know and what the example silos must learn. Pure: seeded, no files.

A task turns a short string of letters into an answer. Sixteen *public* tasks are what the models of
`examples/models` are pretrained on and what anchors are drawn from. The *client* tasks never occur in
pretraining; only the silos of `examples/silos` have samples of them.
"""

import random
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

LETTERS: Final = string.ascii_lowercase[:16]
VOCABULARY: Final = string.ascii_lowercase + " ="
MAX_TOKENS: Final = 24  # bos + prompt + completion + eos of every task fits

_KEYBOARD: Final = "dfinkbpmgheojcla"
_VOWELS: Final = frozenset("aeiou")

# A few examples must not determine a client task, several silos' examples together nearly must.
# Twelve examples of four letters show 85 % of the alphabet on average (each string is wholly covered
# with probability one half), twenty-four show 98 %.
_CIPHER: Final = dict(zip(LETTERS, "eklhcjbdmpongafi", strict=True))
_CIPHER_B: Final = dict(zip(LETTERS, "klojgacebmhfpdin", strict=True))
_LABEL_LETTERS: Final = "abcdefgh"
_LABELS: Final = ("ko", "nu", "da", "mi")
_LABEL: Final = dict(zip(_LABEL_LETTERS, (_LABELS[k] for k in (3, 0, 1, 3, 2, 0, 1, 2)), strict=True))


@dataclass(frozen=True, slots=True)
class Task:
    """A rule from a string to an answer, and the strings it is asked about."""

    name: str
    answer: Callable[[str], str]
    tag: str = ""  # the word that opens the prompt; the name unless two tasks must look alike
    letters: str = LETTERS
    lengths: tuple[int, ...] = (3, 4, 5)

    def example(self, text: str) -> "Example":
        return Example(f"{self.tag or self.name} {text}=", self.answer(text))


@dataclass(frozen=True, slots=True)
class Example:
    """What a model reads and what it must write, before its end-of-sequence token."""

    prompt: str
    completion: str


def _shift(by: int) -> Callable[[str], str]:
    return _substitute({a: LETTERS[(i + by) % len(LETTERS)] for i, a in enumerate(LETTERS)})


def _substitute(table: dict[str, str]) -> Callable[[str], str]:
    return lambda text: "".join(table[a] for a in text)


def _swap_pairs(text: str) -> str:
    return "".join(text[i : i + 2][::-1] for i in range(0, len(text), 2))


def _part(text: str) -> str:
    return "low" if text[0] < "f" else "mid" if text[0] < "k" else "top"


def _kind(text: str) -> str:
    return ("sun", "sea", "sky", "ice")[LETTERS.index(text[-1]) % 4]


PUBLIC_TASKS: Final[tuple[Task, ...]] = (
    Task("copy", lambda text: text),
    Task("rev", lambda text: text[::-1]),
    Task("next", _shift(1)),
    Task("prev", _shift(-1)),
    Task("rot", _shift(8)),
    Task("flip", _substitute(dict(zip(LETTERS, reversed(LETTERS), strict=True)))),
    Task("keys", _substitute(dict(zip(LETTERS, _KEYBOARD, strict=True)))),
    Task("sort", lambda text: "".join(sorted(text))),
    Task("left", lambda text: text[1:] + text[0]),
    Task("right", lambda text: text[-1] + text[:-1]),
    Task("swap", _swap_pairs),
    Task("dup", lambda text: "".join(a + a for a in text)),
    Task("kind", _kind),
    Task("ends", lambda text: text[0] + text[-1]),
    Task("vowel", lambda text: "".join("v" if a in _VOWELS else "c" for a in text)),
    Task("part", _part),
)

CLIENT_TASKS: Final[tuple[Task, ...]] = (
    Task("cipher", _substitute(_CIPHER), lengths=(3,)),
    Task("cipher_b", _substitute(_CIPHER_B), tag="cipher", lengths=(3,)),
    Task("label", lambda text: _LABEL[text[0]], letters=_LABEL_LETTERS, lengths=(4,)),
)

TASKS: Final[dict[str, Task]] = {task.name: task for task in (*PUBLIC_TASKS, *CLIENT_TASKS)}


def draw(task: Task, count: int, rng: random.Random, *, avoid: Collection[str] = ()) -> list[Example]:
    """Draw `count` examples of `task`, all different, none with a prompt in `avoid`."""
    taken = set(avoid)
    examples: list[Example] = []
    room = sum(len(task.letters) ** length for length in task.lengths)
    if count > room - len(taken):
        raise ValueError(f"{task.name} has {room} strings; {count} new ones beside {len(taken)} are too many")
    while len(examples) < count:
        text = "".join(rng.choices(task.letters, k=rng.choice(task.lengths)))
        example = task.example(text)
        if example.prompt not in taken:
            taken.add(example.prompt)
            examples.append(example)
    return examples


def mixture(
    tasks: Collection[Task], count: int, rng: random.Random, *, avoid: Collection[str] = ()
) -> list[Example]:
    """Draw `count` examples of tasks chosen at random; repetitions may occur, prompts in `avoid` do not."""
    pool = list(tasks)
    examples: list[Example] = []
    while len(examples) < count:
        task = rng.choice(pool)
        example = task.example("".join(rng.choices(task.letters, k=rng.choice(task.lengths))))
        if example.prompt not in avoid:
            examples.append(example)
    return examples
