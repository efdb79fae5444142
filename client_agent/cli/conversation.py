"""Prompts typed one after another: answers as they grow, and the turns of a chat while they fit."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from client_agent.errors import AgentError
from client_agent.model.examples import Turn, encode_chat, encode_prompt
from client_agent.model.generation import Answer, Decoding, completion
from client_agent.model.loading import BaseModel

_HELP = (
    "/reset clears the chat, /exit or end of input ends, Ctrl-C stops an answer, a final \\ continues a line"
)


@dataclass(slots=True)
class Side:
    """A model that answers, the base model or the adapter, with its turns of the chat so far."""

    name: str
    attached: Callable[[], AbstractContextManager[object]]
    turns: list[Turn] = field(default_factory=list)


class Conversation:
    """Ask one or two models the same prompts, each with its own turns.

    One model is attached once; of two, the adapter is attached for its answers only.
    """

    def __init__(self, base: BaseModel, sides: list[Side], decoding: Decoding, *, chat: bool) -> None:
        self._base, self._sides, self._decoding, self._chat = base, sides, decoding, chat

    def run(self, first: str | None) -> None:
        """Read prompts from standard input until it ends or a line is /exit; `first` is asked before."""
        kind = "prompts continue one chat" if self._chat else "each prompt starts a new text"
        _note(f"{self._base.slug}: {kind}; {_HELP}")
        if len(self._sides) > 1:
            self._answer_prompts(first)
            return
        side = self._sides[0]
        with side.attached():
            self._sides = [Side(side.name, nullcontext)]
            self._answer_prompts(first)

    def _answer_prompts(self, first: str | None) -> None:
        if first is not None:
            self._ask(first)
        for prompt in _typed():
            if prompt == "/exit":
                return
            if prompt == "/reset":
                for side in self._sides:
                    side.turns.clear()
                _note("the chat is cleared")
            elif prompt.strip():
                self._ask(prompt)

    def _ask(self, prompt: str) -> None:
        heading = len(self._sides) > 1
        for side in self._sides:
            try:
                ids = self._tokens(side, prompt)
                with side.attached():
                    answer = print_answer(
                        self._base, ids, self._decoding, heading=side.name if heading else None
                    )
            except AgentError as error:
                _note(f"error: {error}")
                return
            # An empty answer would be a turn that chat templates refuse.
            if self._chat and answer.text:
                side.turns += [Turn("user", prompt), Turn("assistant", answer.text)]

    def _tokens(self, side: Side, prompt: str) -> list[int]:
        """Tokenise the prompt after the turns that fit; the oldest others are dropped, with a note."""
        if not self._chat:
            return encode_prompt(prompt, self._base.tokenizer, chat=False)
        # At least half of the context is for the prompt, however long an answer may be. The last new token
        # takes no position.
        room = self._base.positions + 1 - min(self._decoding.max_new_tokens, self._base.positions // 2)
        dropped = 0
        while True:
            ids = encode_chat([*side.turns, Turn("user", prompt)], self._base.tokenizer)
            if len(ids) <= room or not side.turns:
                break
            # A prompt goes with its answer, since templates expect users and assistants in turn.
            del side.turns[:2]
            dropped += 1
        if dropped:
            _note(
                f"the context of {self._base.positions} tokens is full: the oldest {dropped} of the prompts "
                "and their answers are forgotten"
            )
        return ids


def print_answer(base: BaseModel, ids: list[int], decoding: Decoding, *, heading: str | None) -> Answer:
    """Print an answer while it is generated, under its heading if there is one. Ctrl-C ends the answer."""
    if heading is not None:
        print(f"--- {heading}")
    with _ctrl_c() as pressed:
        answer = completion(
            base,
            ids,
            decoding,
            on_text=lambda text: print(text, end="", flush=True),
            interrupted=pressed.is_set,
        )
    print()
    if answer.ended == "length":
        _note(f"cut after {answer.tokens} tokens; --max-new-tokens allows more")
    return answer


@contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets, instead of an exception in the middle of the model's work."""
    pressed = threading.Event()
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _typed() -> Iterator[str]:
    """Yield the prompts on standard input; a line that ends with a backslash goes on in the next one."""
    typed_here = sys.stdin.isatty()
    if typed_here:
        import readline  # noqa: F401  # input() then edits lines and keeps their history
    lines: list[str] = []
    while True:
        mark = ("> " if not lines else "  ") if typed_here else ""
        try:
            line = input(mark)
        except EOFError:
            if lines:
                yield "\n".join(lines)
            return
        except KeyboardInterrupt:
            lines.clear()
            print()
            continue
        if line.endswith("\\"):
            lines.append(line[:-1])
            continue
        yield "\n".join([*lines, line])
        lines.clear()


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
