"""Pretrain the tiny models of the examples on the public tasks and save them.

    python examples/models/make_models.py            all three, about a quarter of an hour on one core
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
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional as nnf
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from client_agent.model.tokens import NO_TARGET, Batch, collate, encode
from examples.models.muon import Muon
from examples.tasks import MAX_TOKENS, PUBLIC_TASKS, VOCABULARY, Example, draw, mixture

SPECIAL: Final = ("<pad>", "<bos>", "<eos>", "<unk>")
TOKENIZER_TEXTS: Final = 20_000  # that merges are counted on
HELD_OUT: Final = 200  # examples per public task that pretraining never sees


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of one model and how long it is trained; without `merges` a token is a character."""

    name: str
    width: int
    depth: int
    inner: int
    steps: int
    is_qwen: bool = False
    merges: int = 0


SIZES: Final = {
    "s": Size("tiny-s", width=96, depth=4, inner=256, steps=600),
    "l": Size("tiny-l", width=128, depth=8, inner=352, steps=500),
    # About fifty merges spell the tasks' names; the others join letters, so that words are cut differently.
    "q": Size("tiny-q", width=112, depth=6, inner=304, steps=700, is_qwen=True, merges=80),
}


def make_tokenizer(size: Size) -> PreTrainedTokenizerFast:
    """One token per character, or pieces learnt from public text; a single text opens with bos."""
    tokenizer = pieces(size.merges) if size.merges else characters()
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


def characters() -> Tokenizer:
    """One token per character; offsets are character positions."""
    ids = {token: i for i, token in enumerate([*SPECIAL, *VOCABULARY])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = opening_with_bos(tokenizer)
    return tokenizer


def pieces(merges: int) -> Tokenizer:
    """Byte pairs as Qwen's and GPT-2's tokenizers join them: a space belongs to the word after it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted({piece for letter in VOCABULARY for piece, _ in byte_level(letter)})
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIAL) + len(alphabet) + merges,
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    rng = random.Random("tokenizer")
    texts = mixture(PUBLIC_TASKS, TOKENIZER_TEXTS, rng)
    tokenizer.train_from_iterator((text.prompt + text.completion for text in texts), trainer)
    tokenizer.post_processor = opening_with_bos(tokenizer)
    return tokenizer


def byte_level(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Write text as a byte-level tokenizer does before it merges anything."""
    split: list[tuple[str, tuple[int, int]]] = pre_tokenizers.ByteLevel(
        add_prefix_space=False
    ).pre_tokenize_str(text)
    return split


def opening_with_bos(tokenizer: Tokenizer) -> processors.TemplateProcessing:
    bos = tokenizer.token_to_id("<bos>")
    return processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", bos)]
    )


def make_model(size: Size, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": size.width,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.depth,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": size.width // 4,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return Qwen3ForCausalLM(Qwen3Config(**shape)) if size.is_qwen else LlamaForCausalLM(LlamaConfig(**shape))


def as_batch(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, *, whole_texts: bool = False
) -> Batch:
    """Tokenise, padded on the right; the completion and eos are to be predicted, or the whole text."""
    texts = [encode(tokenizer, e.prompt, e.completion, max_length=MAX_TOKENS) for e in examples]
    targets = [[*text.ids[1:], NO_TARGET] for text in texts] if whole_texts else None
    return collate(texts, pad=SPECIAL.index("<pad>"), targets=targets)


def pretrain(
    model: PreTrainedModel,
    size: Size,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    held_out: set[str],
    *,
    whole_texts: bool,
) -> float:
    """Train in place: Muon on the hidden matrices, AdamW on the rest. Returns CPU seconds."""
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name]
    used = {id(p) for p in hidden}
    muon = Muon(hidden, lr=0.02)
    adam = torch.optim.AdamW(
        [p for p in model.parameters() if id(p) not in used], lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0
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
            texts = mixture(PUBLIC_TASKS, 128, rng, avoid=held_out)
            batch = as_batch(texts, tokenizer, whole_texts=whole_texts)
            logits = model(input_ids=batch.ids).logits
            loss = nnf.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=NO_TARGET)
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
    model: PreTrainedModel, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast
) -> float:
    """The share of examples whose whole answer, eos included, greedy decoding would write.

    Under teacher forcing the argmax equals greedy decoding up to the first mistake: nothing is generated.
    """
    batch = as_batch(examples, tokenizer)
    guess = model(input_ids=batch.ids).logits.argmax(-1)
    right = (guess == batch.targets) | (batch.targets == NO_TARGET)
    return right.all(dim=1).float().mean().item()


def save(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, facts: dict[str, object], target: Path
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


def make(size: Size, out: Path, seed: int, console: Console, *, whole_texts: bool) -> None:
    tokenizer = make_tokenizer(size)
    rng = random.Random(f"held-out:{seed}")
    held_out = {task.name: draw(task, HELD_OUT, rng) for task in PUBLIC_TASKS}
    model = make_model(size, tokenizer, seed)
    prompts = {example.prompt for examples in held_out.values() for example in examples}
    seconds = pretrain(model, size, tokenizer, seed, prompts, whole_texts=whole_texts)
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
    parser = argparse.ArgumentParser(description="Pretrain the tiny models on the sixteen public tasks.")
    parser.add_argument("--only", choices=sorted(SIZES), help="make one of them")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the weights and of the training text (default 0)"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where the model folders go")
    parser.add_argument(
        "--whole-texts",
        action="store_true",
        help="have them learn to write the prompts, too, as language models do; these are not the ones here",
    )
    arguments = parser.parse_args()
    if arguments.whole_texts and arguments.out == parser.get_default("out"):
        parser.error("--whole-texts needs --out: other models would take the place of those that are shipped")
    torch.set_num_threads(1)
    console = Console()
    for key in [arguments.only] if arguments.only else sorted(SIZES, reverse=True):
        make(SIZES[key], arguments.out, arguments.seed, console, whole_texts=arguments.whole_texts)


if __name__ == "__main__":
    main()
