"""The command `tessera agent data`: show a silo's data as the model reads them."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_agent.cli.console import Config, Json, clear_errors, opened_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerFast

    from client_agent.model.examples import Example
    from client_agent.settings import AgentSettings
    from client_agent.training.data import SiloData

data = typer.Typer()

_SHOWN = 3
_MAX_LENGTH = 512


@data.command("data")
def show_data(
    config: Config = None,
    count: Annotated[int, typer.Option("--examples", min=0, help="Number of examples to print.")] = _SHOWN,
    max_length: Annotated[
        int,
        typer.Option(min=2, help="Largest number of tokens of a text, as training.max_length of the plan."),
    ] = _MAX_LENGTH,
    as_json: Json = False,
) -> None:
    """Show the silo's examples as the model reads them: learnt text, counts, lengths, duplicates.

    Loads the tokenizer and no model; a .gguf file is converted first. `format` in silo.toml names the format
    of a row: messages, prompt_completion, sharegpt, alpaca, text, or a task template (natural_instructions,
    mnli, commonsense_qa, squad, gsm8k, openbookqa, boolq, winogrande, arc_easy, arc_challenge). `template` in
    silo.toml, or `tessera agent init --template`, is your own template in place of `format`.

    Example: `tessera agent data --config silo.toml --examples 10`
    """
    with clear_errors(), opened_settings(config) as settings:
        from client_agent.model.chat import set_template
        from client_agent.model.gguf import model_folder
        from client_agent.model.loading import load_tokenizer
        from client_agent.training.remarks import remarks_on
        from client_agent.training.silo import load_silo_data

        silo_data = load_silo_data(settings)
        tokenizer = load_tokenizer(model_folder(settings.model, settings.folder))
        set_template(tokenizer, settings.chat_template)
        summary = _summary(silo_data, tokenizer, max_length)
        remarks = remarks_on(silo_data, tokenizer)
        size = _prefix_size(settings, summary)
        if as_json:
            print(json.dumps({**summary, "remarks": remarks, "size": size}, indent=1))
            return
        console = Console(highlight=False)
        for example in silo_data.train[:count]:
            console.print(_marked(example, tokenizer), soft_wrap=True)
            console.rule(style="dim")
        console.print("learnt text is [bold green]green[/], or between » and «")
        console.print(_table(summary))
        for remark in (*remarks, size):
            console.print(remark, soft_wrap=True, markup=False)


def _prefix_size(settings: AgentSettings, summary: dict[str, dict[str, object] | int]) -> str:
    """Return what the texts take on disk if a plan has adapters in the last layers; see `FrozenPrefix`."""
    from transformers import AutoConfig

    from client_agent.model.gguf import model_folder
    from client_agent.training.silo import device_named, dtype_of

    tokens = sum(cast(int, counts["tokens"]) for counts in summary.values() if isinstance(counts, dict))
    folder = model_folder(settings.model, settings.folder)
    config = cast(Any, AutoConfig).from_pretrained(folder, trust_remote_code=False)
    width = int(config.get_text_config().hidden_size)
    size = tokens * width * dtype_of(settings, device_named(settings.device)).itemsize / 2**20
    return (
        f"{tokens} tokens take {size:.1f} MiB where a plan has adapters in the last layers only "
        "(adapter.layers) and the others are computed once per text; prefix_cache_mib is "
        f"{settings.prefix_cache_mib}"
    )


def _marked(example: Example, tokenizer: PreTrainedTokenizerFast) -> Text:
    """Return all that the model reads of an example, its learnt parts marked, control characters as escapes.

    Tokens that the tokenizer adds before and behind the text are shown with it.
    """
    from client_agent.data.printable import printable
    from client_agent.model.examples import encode_example, learnt_parts

    parts = learnt_parts(example, tokenizer)
    read = encode_example(example, tokenizer, sys.maxsize)
    names = cast(Any, tokenizer).convert_ids_to_tokens(list(read.ids))
    # Special tokens have no characters, so they are shown by name.
    first = next((i for i, span in enumerate(read.spans) if span != (0, 0)), len(read.ids))
    last = next((i for i in range(len(read.ids), first, -1) if read.spans[i - 1] != (0, 0)), first)
    spans = list(parts.spans)
    if last > first and read.answer[last - 1] and read.spans[last - 1][0] >= spans[-1][1]:
        spans.append(read.spans[last - 1])  # the token that ends the answer
    added = "".join(names[last:])
    marked, position = Text("".join(names[:first]), "dim"), 0
    for start, end in spans:
        learnt = parts.text[start:end]
        if added and end == len(parts.text) and read.answer[-1]:
            learnt, added = learnt + added, ""
        marked.append(printable(parts.text[position:start]), "dim")
        marked.append("»")
        marked.append(printable(learnt), "bold green")
        marked.append("«")
        position = end
    marked.append(printable(parts.text[position:]) + added, "dim")
    return marked


def _summary(
    silo_data: SiloData, tokenizer: PreTrainedTokenizerFast, max_length: int
) -> dict[str, dict[str, object] | int]:
    """Count examples, tokens, cut texts and duplicates of the three sets; validation may be empty."""
    sets = {"train": silo_data.train, "validation": silo_data.validation, "test": silo_data.test}
    members = Counter(
        key for examples in sets.values() for key in {example.prompt_key for example in examples}
    )
    return {
        **{
            name: _counts(examples, len(silo_data.all), tokenizer, max_length)
            for name, examples in sets.items()
        },
        "in two sets": sum(count > 1 for count in members.values()),
        "skipped rows": len(silo_data.skipped),
    }


def _counts(
    examples: Sequence[Example], whole_count: int, tokenizer: PreTrainedTokenizerFast, max_length: int
) -> dict[str, object]:
    from client_agent.console_counts import counted
    from client_agent.model.examples import encode_example, encode_whole

    lengths: list[int] = []
    learnt = learnt_read = tokens = text_count = tokens_cut = cut_count = 0
    for example in counted(examples, "tokenising examples", len(examples)):
        whole = encode_example(example, tokenizer, sys.maxsize)
        length = len(whole.ids)
        fits = length <= max_length
        texts = [whole] if fits else encode_whole(example, tokenizer, max_length)
        lengths.append(length)
        learnt += sum(whole.answer[1:])  # nothing predicts the first token
        learnt_read += sum(sum(text.answer[1:]) for text in texts)
        tokens += sum(len(text.ids) for text in texts)
        text_count += len(texts)
        if not fits and not example.is_raw_text:
            cut_count += 1
            tokens_cut += length - max_length
    return {
        "examples": len(examples),
        "share": f"{len(examples) / whole_count:.0%}",
        "duplicates": len(examples) - len({example.key for example in examples}),
        "tokens": tokens,
        "median tokens": int(statistics.median(lengths or [0])),
        "longest": max(lengths, default=0),
        "learnt tokens": learnt,
        f"cut at {max_length}": cut_count,
        "tokens cut": tokens_cut,
        "learnt tokens cut": learnt - learnt_read,
        "pieces": text_count,
    }


def _table(summary: dict[str, dict[str, object] | int]) -> Table:
    table = Table(box=None)
    table.add_column()
    sets = {name: counts for name, counts in summary.items() if isinstance(counts, dict)}
    for name in sets:
        table.add_column(name, justify="right")
    for row in next(iter(sets.values())):
        table.add_row(row, *(str(counts[row]) for counts in sets.values()))
    for name, counts in summary.items():
        if isinstance(counts, int):
            table.add_row(name, str(counts))
    return table
