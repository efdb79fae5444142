"""Measure how much text an attacker recovers from a client's sketch.

    python -m benchmarks.leak [--rounds 3] [--out FILE.json]

The attacker is the coordinator: it knows the shared model (examples/models/tiny-s), the sketch's seed and the
form of the texts, and sees the mean gradient of a batch in one of these ways: whole, as published systems
send it; as a sketch; as a sketch with differential privacy. A sketch is undone by its adjoint, which gives
the gradient and what collided with it. The gradient is G^T U, rows u the inputs of the last `down` and rows g
the gradients at its outputs. Two decisive steps of published attacks are run on it:

span check, DAGER (Petrov et al. 2024, arXiv 2405.15586): a prompt is in the batch if its u lies in the span
    of the gradient's rows; a token follows it if its g lies in the span of the columns.
matching, as attacks that search for text with the same gradient do (LAMP, Balunovic et al. 2022, arXiv
    2202.08827): a prompt or token is in the batch if its own gradient points where the observed one does.

Prompts are told from decoys of the same form: AUC, .5 is guessing. Answers are read token by token behind the
true prompt, each after what was read before; `the model alone` is what it says without any observation.
"""

from __future__ import annotations

import argparse
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from benchmarks import figures
from client_agent.model.examples import Example, encode_example
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.model.tokens import Batch, TokenizedText, collate, pad_id
from client_agent.privacy.accountant import noise_for
from client_agent.privacy.release import Mechanism, release
from client_agent.sketches.gradient import buckets_and_signs, last_block_gradient
from client_agent.sketches.per_record import record_sketches
from examples.tasks import LETTERS, TASKS, draw
from schemas.maths.seeded_random import stream
from schemas.messages.federations import SignaturePlan

ROOT = Path(__file__).resolve().parents[1]
BATCHES = (1, 4, 16, 64)
VICTIMS = {1: 8, 4: 4, 16: 1, 64: 1}
READ = 16  # records of a batch whose answers are read
DECOYS = 64
CLIP = 1.0
DELTA = 1e-5
BUDGETS = (8.0, 1.0)
Grid = NDArray[np.float64]
Check = Callable[[Grid, Tensor, Tensor], NDArray[np.float64]]
"""Score a context's continuations by the observed gradient: g (v, d), u (d_ff,) -> (v,), more is likelier."""


def main() -> None:
    """Attack, show, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.leak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=1, help="draws of all victims (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/leak.json"))
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    base = load_base_model(str(ROOT / "examples" / "models" / "tiny-s"), device=torch.device("cpu"))
    attacker = Attacker.of(base)
    result: dict[str, dict[int, list[tuple[float, float]]]] = {}
    cases = [(b, v) for b in BATCHES for v in range(VICTIMS[b] * arguments.rounds)]
    for batch, victim in track(cases, description="victims", console=console):
        for name, scores in attacked(attacker, batch, victim).items():
            result.setdefault(name, {}).setdefault(batch, []).append(scores)
    means = {
        name: {str(batch): np.mean(scores, axis=0).tolist() for batch, scores in of.items()}
        for name, of in result.items()
    }
    figures.write(arguments.out, {**figures.machine(), "rounds": arguments.rounds, "cases": means})
    for at, title in enumerate(("prompts told from decoys (AUC)", "answer tokens read (share)")):
        rows = [(name, *(of[str(batch)][at] for batch in BATCHES)) for name, of in means.items()]
        figures.show(console, title, ("observed, attack", *(f"{b} records" for b in BATCHES)), rows)


@dataclass(frozen=True)
class Attacker:
    """The shared model, and which tokens a text may consist of."""

    base: BaseModel
    letters: tuple[int, ...]

    @classmethod
    def of(cls, base: BaseModel) -> Attacker:
        ids: Any = base.tokenizer.convert_tokens_to_ids([*LETTERS, str(base.tokenizer.eos_token)])
        return cls(base, tuple(int(i) for i in ids))

    def continuations(self, contexts: Sequence[tuple[int, ...]]) -> list[tuple[Tensor, Tensor]]:
        """Return per context the gradient g (v, d) of the next token, and u (d_ff,) at its last position."""
        texts = [_continued(context, token) for context in contexts for token in self.letters]
        batch = collate(texts, pad=pad_id(self.base.tokenizer))
        g, u, _ = last_block_gradient(self.base, batch)  # one answer token each: row i is of text i
        count = len(self.letters)
        return [(g[i : i + count], u[i]) for i in range(0, len(texts), count)]

    def says(self, context: tuple[int, ...]) -> int:
        """Return the token that the model itself thinks likeliest."""
        batch = collate([_continued(context, self.letters[0])], pad=pad_id(self.base.tokenizer))
        logits, _ = answer_logits(self.base, batch)
        return int(logits[0, list(self.letters)].argmax())


def attacked(attacker: Attacker, count: int, victim: int) -> dict[str, tuple[float, float]]:
    """Run both attacks on everything that a batch of `count` records may be seen as."""
    pool = draw(TASKS["cipher"], count + DECOYS, random.Random(f"leak:{count}:{victim}"))
    texts = [Example(item.prompt, item.completion) for item in pool]
    encoded = [encode_example(text, attacker.base.tokenizer, 64) for text in texts]
    contexts = [text.ids[: text.answer.index(True)] for text in encoded]
    answers = [text.ids[text.answer.index(True) :] for text in encoded[: min(count, READ)]]
    received = observed(attacker.base, texts[:count])
    firsts = attacker.continuations(contexts)
    results = {"nothing, the model alone": (0.5, _read(attacker, contexts, answers, None))}
    for name, gradient in received.items():
        for attack, check in (("span check", spans(gradient)), ("matching", matching(gradient))):
            # Of a prompt the best continuation counts: the attacker does not know which is right.
            scores = [float(check(gradient, g, u).max()) for g, u in firsts]
            auc = _auc(scores[:count], scores[count:])
            results[f"{name}, {attack}"] = (
                auc,
                _read(attacker, contexts, answers, (gradient, check)),
            )
    return results


def observed(base: BaseModel, records: list[Example]) -> dict[str, Grid]:
    """Return what the attacker sees of a batch, as a (d, d_ff) gradient."""
    factors = [last_block_gradient(base, _alone(base, record))[:2] for record in records]
    whole = np.zeros((base.hidden_size, factors[0][1].shape[1]))
    for g, u in factors:
        gradient = (g.T @ u / len(g)).double().numpy()
        whole += gradient * min(1.0, CLIP / float(np.linalg.norm(gradient))) / len(records)
    received = {"whole gradient": whole}
    for dim in (256, 64):
        plan = SignaturePlan(dim=dim, clip=CLIP)
        sketches = list(record_sketches(base, records, plan))
        clipped = [item * min(1.0, CLIP / float(np.linalg.norm(item))) for item in sketches]
        received[f"sketch of {dim}"] = undone(np.mean(clipped, axis=0), plan, whole.shape)
        if dim == 64:
            for budget in BUDGETS:
                noise = noise_for(1, 1, 1, budget, DELTA)  # all are drawn: of how many does not matter
                mechanism = Mechanism(len(records), len(records), noise, CLIP, dim)
                built = release(sketches, mechanism, secrets.randbelow)
                received[f"sketch of 64, epsilon {budget:g}"] = undone(built, plan, whole.shape)
    return received


def undone(sketch: Grid, plan: SignaturePlan, shape: tuple[int, ...]) -> Grid:
    """Apply the sketch's adjoint: each entry gets its bucket's number with its sign."""
    bucket, sign = buckets_and_signs(stream("sketch", plan.seed), int(np.prod(shape)), plan.dim)
    entries: Grid = (sketch[bucket] * sign).reshape(shape)
    return entries


def spans(gradient: Grid) -> Check:
    """DAGER's check: how little of u is outside the rows' span, and of g outside the columns'."""
    left_vectors, sizes, right = np.linalg.svd(gradient, full_matrices=False)
    rank = int((sizes > sizes[0] * 1e-6).sum())
    columns, rows = left_vectors[:, :rank], right[:rank]  # (d, rank), (rank, d_ff)

    def check(_: Grid, g: Tensor, u: Tensor) -> NDArray[np.float64]:
        wide, last = g.double().numpy(), u.double().numpy()
        outside = np.linalg.norm(last - rows.T @ (rows @ last)) / np.linalg.norm(last)
        off = np.linalg.norm(wide - (wide @ columns) @ columns.T, axis=1) / np.linalg.norm(wide, axis=1)
        return -off - float(outside)

    return check


def matching(gradient: Grid) -> Check:
    """Return the cosine between the gradient of one token and the observed one."""
    length = np.linalg.norm(gradient)

    def check(received: Grid, g: Tensor, u: Tensor) -> NDArray[np.float64]:
        wide, last = g.double().numpy(), u.double().numpy()
        cosines: NDArray[np.float64] = wide @ (received @ last)
        return cosines / (np.linalg.norm(wide, axis=1) * np.linalg.norm(last) * length)

    return check


def _read(
    attacker: Attacker,
    contexts: Sequence[tuple[int, ...]],
    answers: Sequence[tuple[int, ...]],
    received: tuple[Grid, Check] | None,
) -> float:
    """Read every answer token by token; the share that is right, the end of the text included."""
    right = total = 0
    for context, answer in zip(contexts, answers, strict=False):
        read = context
        for token in answer:
            if received is None:
                best = attacker.says(read)
            else:
                ((g, u),) = attacker.continuations([read])
                best = int(received[1](received[0], g, u).argmax())
            read = (*read, attacker.letters[best])
            right += read[-1] == token
            total += 1
    return right / total


def _auc(true: Sequence[float], decoys: Sequence[float]) -> float:
    """Return the probability that a true token scores higher than a decoy; ties count half."""
    differences = np.subtract.outer(np.array(true), np.array(decoys))
    return float((differences > 0).mean() + (differences == 0).mean() / 2)


def _continued(context: tuple[int, ...], token: int) -> TokenizedText:
    ids = (*context, token)
    return TokenizedText(ids, (*(False for _ in context), True), tuple((0, 0) for _ in ids))


def _alone(base: BaseModel, record: Example) -> Batch:
    return collate([encode_example(record, base.tokenizer, 64)], pad=pad_id(base.tokenizer))


if __name__ == "__main__":
    main()
