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
VOCABULARY: Final = LETTERS + string.ascii_uppercase + " ="
MAX_TOKENS: Final = 24  # bos + prompt + completion + eos of every task fits

# Tables of the public substitutions. No letter goes to the same place in two of these or in a client's.
_RIVER: Final = "oglakicbpfmnhdej"
_STONE: Final = "neioglkmdpbacjhf"
_CLOUD: Final = "fkjghdblneioapmc"
_AMBER: Final = "jipbcmnfkdghoale"

# A few examples must not determine a client task, several silos' examples together nearly must.
# Twelve examples of four letters leave a letter unseen with probability .045 and so determine five strings
# in six at best, many letters from one sighting; twenty-four leave .002 unseen.
_CIPHER: Final = "hfmnajikcoegpldb"
_CIPHER_B: Final = "dnejohlamcpbfgki"
_CIPHER_C: Final = "kdhibcaogmnpjefl"

# A label hangs on the first letter alone; that the other letters do not matter must be learned, too.
_LABEL: Final = dict(zip("abcdef", ("di", "me", "ko", "ko", "di", "me"), strict=True))


@dataclass(frozen=True, slots=True)
class Task:
    """A rule from a string to an answer, and the strings it is asked about."""

    name: str
    answer: Callable[[str], str]
    tag: str = ""  # the word that opens the prompt; the name unless two tasks must look alike
    letters: str = LETTERS
    lengths: tuple[int, ...] = (3, 4, 5)

    def example(self, text: str) -> "Example":
        return Example(f"{(self.tag or self.name).upper()} {text}=", self.answer(text))


@dataclass(frozen=True, slots=True)
class Example:
    """What a model reads and what it must write, before its end-of-sequence token."""

    prompt: str
    completion: str


def _table(image: str) -> Callable[[str], str]:
    table = dict(zip(LETTERS, image, strict=True))
    return lambda text: "".join(table[a] for a in text)


def _shift(by: int) -> Callable[[str], str]:
    return _table(LETTERS[by:] + LETTERS[:by])


def _swap_pairs(text: str) -> str:
    return "".join(text[i : i + 2][::-1] for i in range(0, len(text), 2))


def _class_of_first(*labels: str, stride: int) -> Callable[[str], str]:
    return lambda text: labels[LETTERS.index(text[0]) * stride // 4 % len(labels)]


PUBLIC_TASKS: Final[tuple[Task, ...]] = (
    Task("copy", _shift(0)),
    Task("next", _shift(1)),
    Task("prev", _shift(-1)),
    Task("half", _shift(8)),
    Task("flip", _table(LETTERS[::-1])),
    Task("river", _table(_RIVER)),
    Task("stone", _table(_STONE)),
    Task("cloud", _table(_CLOUD)),
    Task("amber", _table(_AMBER)),
    Task("rev", lambda text: text[::-1]),
    Task("left", lambda text: text[1:] + text[0]),
    Task("swap", _swap_pairs),
    Task("ends", lambda text: text[0] + text[-1]),
    Task("part", _class_of_first("lo", "in", "hi", stride=1)),
    Task("kind", _class_of_first("an", "ebb", "ice", "oak", stride=4)),
    Task("sort", lambda text: "".join(sorted(text))),
)

CLIENT_TASKS: Final[tuple[Task, ...]] = (
    Task("cipher", _table(_CIPHER), lengths=(4,)),
    Task("cipher_b", _table(_CIPHER_B), tag="cipher", lengths=(4,)),
    Task("label", lambda text: _LABEL[text[0]], letters="".join(_LABEL), lengths=(4,)),
    Task("cipher_c", _table(_CIPHER_C), tag="cipher", lengths=(4,)),
)

TASKS: Final[dict[str, Task]] = {task.name: task for task in (*PUBLIC_TASKS, *CLIENT_TASKS)}


def draw(task: Task, count: int, rng: random.Random, *, avoid: Collection[str] = ()) -> list[Example]:
    """Draw `count` examples of `task`, all different, none with a prompt in `avoid`."""
    used = set(avoid)
    examples: list[Example] = []
    room = sum(len(task.letters) ** length for length in task.lengths)
    if count > room - len(used):
        raise ValueError(f"{task.name} has {room} strings; {count} new ones beside {len(used)} are too many")
    while len(examples) < count:
        text = "".join(rng.choices(task.letters, k=rng.choice(task.lengths)))
        example = task.example(text)
        if example.prompt not in used:
            used.add(example.prompt)
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
