"""Pretrain the two tiny Llama models of the examples on the public tasks and save them.

    python examples/models/make_models.py            both models, about ten minutes on one core
    python examples/models/make_models.py --only s   one of them

It knows nothing of the client tasks. The same seed on the same machine gives the same weights.
"""

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn import functional as nnf
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.tasks import MAX_TOKENS, PUBLIC_TASKS, VOCABULARY, Example, draw, mixture

IGNORE: Final = -100  # the label of a token that carries no loss
HELD_OUT: Final = 200  # examples per public task that pretraining never sees


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of one model and how long it is trained."""

    name: str
    width: int
    depth: int
    inner: int
    steps: int


SIZES: Final = {
    "s": Size("tiny-s", width=96, depth=4, inner=256, steps=600),
    "l": Size("tiny-l", width=128, depth=8, inner=352, steps=500),
}


class Muon:
    """Momentum whose update is orthogonalised, for matrices only (Jordan et al. 2024).

    U = c NS(g + beta m), with NS the quintic Newton-Schulz iteration towards the nearest semi-orthogonal
    matrix and c = sqrt(max(1, rows / columns)). Matrices of one shape are worked on as one batch.
    """

    def __init__(self, matrices: Sequence[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        self.lr = lr
        self.momentum = momentum
        shapes = sorted({tuple(p.shape) for p in matrices})
        self.groups = [[p for p in matrices if tuple(p.shape) == shape] for shape in shapes]
        self.buffers = [torch.zeros(len(group), *group[0].shape) for group in self.groups]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            gradient = torch.stack([p.grad for p in group if p.grad is not None])  # (n, rows, columns)
            buffer.mul_(self.momentum).add_(gradient)
            update = orthogonalised(gradient + self.momentum * buffer)
            rows, columns = update.shape[1:]
            factor = self.lr * scale * max(1.0, rows / columns) ** 0.5
            for p, u in zip(group, update, strict=True):
                p.sub_(u, alpha=factor)


def orthogonalised(m: Tensor, iterations: int = 5) -> Tensor:
    """Push every singular value of each matrix of the batch towards 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = m.shape[-2] > m.shape[-1]
    x = m.mT if tall else m
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; a single text opens with bos; offsets are character positions."""
    special = ["<pad>", "<bos>", "<eos>", "<unk>"]
    ids = {token: i for i, token in enumerate([*special, *VOCABULARY])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", ids["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="right",
        model_max_length=64,
        clean_up_tokenization_spaces=False,
    )


def make_model(size: Size, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.depth,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def as_batch(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor]:
    """Token ids and labels (n, t), padded on the right; the completion and eos carry the loss."""
    ids = tokenizer.get_vocab()
    pad, bos, eos = ids["<pad>"], ids["<bos>"], ids["<eos>"]
    rows: list[list[int]] = []
    labels: list[list[int]] = []
    for example in examples:
        prompt = [bos, *(ids[a] for a in example.prompt)]
        answer = [*(ids[a] for a in example.completion), eos]
        rows.append(prompt + answer)
        labels.append([IGNORE] * len(prompt) + answer)
    longest = max(map(len, rows))
    assert longest <= MAX_TOKENS
    return (
        torch.tensor([row + [pad] * (longest - len(row)) for row in rows]),
        torch.tensor([row + [IGNORE] * (longest - len(row)) for row in labels]),
    )


def pretrain(
    model: LlamaForCausalLM, size: Size, tokenizer: PreTrainedTokenizerFast, seed: int, held_out: set[str]
) -> float:
    """Train in place: Muon on the hidden matrices, AdamW on the rest. Returns CPU seconds."""
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name]
    taken = {id(p) for p in hidden}
    muon = Muon(hidden, lr=0.02)
    adam = torch.optim.AdamW(
        [p for p in model.parameters() if id(p) not in taken], lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0
    )
    rng = random.Random(f"pretraining:{seed}")
    started = time.process_time()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task(size.name, total=size.steps, loss=float("nan"))
        for step in range(size.steps):
            ids, labels = as_batch(mixture(PUBLIC_TASKS, 128, rng, avoid=held_out), tokenizer)
            logits = model(input_ids=ids).logits
            loss = nnf.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE
            )
            loss.backward()
            scale = min(1.0, (step + 1) / 20) * (1 - step / size.steps)
            adam.param_groups[0]["lr"] = 3e-3 * scale
            muon.step(scale)
            adam.step()
            model.zero_grad(set_to_none=True)
            progress.update(bar, advance=1, loss=loss.item())
    return time.process_time() - started


@torch.no_grad()
def exact_match(
    model: LlamaForCausalLM, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast
) -> float:
    """The share of examples whose whole answer, eos included, greedy decoding would write.

    Under teacher forcing the argmax equals greedy decoding up to the first mistake: nothing is generated.
    """
    ids, labels = as_batch(examples, tokenizer)
    guess = model(input_ids=ids).logits[:, :-1].argmax(-1)
    right = (guess == labels[:, 1:]) | (labels[:, 1:] == IGNORE)
    return right.all(dim=1).float().mean().item()


def save(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, facts: dict[str, object], target: Path
) -> None:
    """Write the whole folder beside its place, then move it there."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    model.save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    (fresh / "pretraining.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def make(size: Size, out: Path, seed: int, console: Console) -> None:
    tokenizer = make_tokenizer()
    rng = random.Random(f"held-out:{seed}")
    held_out = {task.name: draw(task, HELD_OUT, rng) for task in PUBLIC_TASKS}
    model = make_model(size, tokenizer, seed)
    prompts = {example.prompt for examples in held_out.values() for example in examples}
    seconds = pretrain(model, size, tokenizer, seed, prompts)
    model.half().float()  # what is scored is what float16 keeps
    model.eval()
    scores = {name: round(exact_match(model, examples, tokenizer), 3) for name, examples in held_out.items()}
    model.half()
    parameters = sum(p.numel() for p in model.parameters())
    facts: dict[str, object] = {
        "parameters": parameters,
        "steps": size.steps,
        "seed": seed,
        "cpu_seconds": round(seconds),
        "exact_match": scores,
    }
    save(model, tokenizer, facts, out / size.name)
    table = Table(title=f"{size.name}: {parameters:,} parameters, {seconds:.0f} CPU seconds")
    table.add_column("public task")
    table.add_column("exact match", justify="right")
    for name, score in scores.items():
        table.add_row(name, f"{score:.3f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain tiny-s and tiny-l on the sixteen public tasks.")
    parser.add_argument("--only", choices=sorted(SIZES), help="make one of the two models")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the weights and of the training text (default 0)"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where the model folders go")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    for key in [arguments.only] if arguments.only else sorted(SIZES, reverse=True):
        make(SIZES[key], arguments.out, arguments.seed, console)


if __name__ == "__main__":
    main()
