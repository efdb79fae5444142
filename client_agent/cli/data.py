"""Commands for a silo's data: show it as the model sees it, and write a first silo.toml."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client_agent.cli.console import Config, Json, clear_errors, opened_settings
from client_agent.errors import OutputUnwritable, SettingsUnusable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerFast

    from client_agent.data.load import RowOptions
    from client_agent.model.examples import Example
    from client_agent.training.data import SiloData

data = typer.Typer()

_SHOWN = 3
_MAX_LENGTH = 512
_FORMATS = (
    "messages, prompt_completion, sharegpt, alpaca, text, or a task template: natural_instructions, mnli, "
    "commonsense_qa, squad, gsm8k, openbookqa, boolq, winogrande, arc_easy, arc_challenge"
)


@data.command("data")
def show_data(
    config: Config = None,
    count: Annotated[
        int, typer.Option("--examples", min=0, help="The number of examples to print.")
    ] = _SHOWN,
    max_length: Annotated[
        int, typer.Option(min=2, help="The longest text in tokens; the plan's training.max_length.")
    ] = _MAX_LENGTH,
    as_json: Json = False,
) -> None:
    """Show the silo's examples as the model sees them: what is learnt, counts, lengths, duplicates.

    Loads the tokenizer and no model; a .gguf file is converted first. `format` in silo.toml names what a row
    is: messages, prompt_completion, sharegpt, alpaca, text, or a task template (natural_instructions, mnli,
    commonsense_qa, squad, gsm8k, openbookqa, boolq, winogrande, arc_easy, arc_challenge).
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
        if as_json:
            print(json.dumps({**summary, "remarks": remarks}, indent=1))
            return
        console = Console(highlight=False)
        for example in silo_data.train[:count]:
            console.print(_marked(example, tokenizer), soft_wrap=True)
            console.rule(style="dim")
        console.print("learnt text is [bold green]green[/], or between » and «")
        console.print(_table(summary))
        for remark in remarks:
            console.print(remark, soft_wrap=True, markup=False)


def _marked(example: Example, tokenizer: PreTrainedTokenizerFast) -> Text:
    """Return the text of an example with its learnt parts marked, control characters as escapes."""
    from client_agent.data.printable import printable
    from client_agent.model.examples import learnt_end, learnt_parts

    parts = learnt_parts(example, tokenizer)
    marked, position, end_token = Text(), 0, learnt_end(example, tokenizer)
    for start, end in parts.spans:
        learnt = parts.text[start:end]
        if end == len(parts.text) and not learnt.endswith(end_token):
            learnt += end_token
        marked.append(printable(parts.text[position:start]), "dim")
        marked.append("»")
        marked.append(printable(learnt), "bold green")
        marked.append("«")
        position = end
    return marked


def _summary(
    silo_data: SiloData, tokenizer: PreTrainedTokenizerFast, max_length: int
) -> dict[str, dict[str, object] | int]:
    """Count examples, tokens, cut texts and duplicates of the three sets; validation may be empty."""
    sets = {"train": silo_data.train, "validation": silo_data.validation, "test": silo_data.test}
    members = Counter(key for examples in sets.values() for key in {example.key for example in examples})
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
    from client_agent.model.examples import encode_example, encode_whole

    whole = [encode_example(example, tokenizer, sys.maxsize) for example in examples]
    lengths = [len(text.ids) for text in whole]
    is_cut = [
        length > max_length and not example.is_raw_text
        for example, length in zip(examples, lengths, strict=True)
    ]
    encoded = [text for example in examples for text in encode_whole(example, tokenizer, max_length)]
    learnt = sum(sum(text.answer) for text in whole)
    return {
        "examples": len(examples),
        "share": f"{len(examples) / whole_count:.0%}",
        "duplicates": len(examples) - len({example.key for example in examples}),
        "median tokens": int(statistics.median(lengths or [0])),
        "longest": max(lengths, default=0),
        "learnt tokens": learnt,
        f"cut at {max_length}": sum(is_cut),
        "tokens cut": sum(length - max_length for length, cut in zip(lengths, is_cut, strict=True) if cut),
        "learnt tokens cut": learnt - sum(sum(text.answer) for text in encoded),
        "pieces": len(encoded),
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


@data.command("init")
def init(
    model: Annotated[str, typer.Option(help="The base model: a folder, a .gguf file or a hub id.")],
    train: Annotated[str, typer.Option(help="Training data: a file, a saved data set, or hub:<id>:<split>.")],
    test: Annotated[str | None, typer.Option(help="Held-out data; by default a fifth of --train.")] = None,
    validation: Annotated[
        str | None, typer.Option(help="Validation data; by default a tenth of the rest of --train.")
    ] = None,
    url: Annotated[str, typer.Option(help="The coordinator's URL.")] = "http://127.0.0.1:8000",
    row_format: Annotated[
        str | None, typer.Option("--format", help=f"{_FORMATS}; by default found by the columns.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="A column of the data under another name: prompt=question; repeatable.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column, or a key of turns, that is as if it were not there; repeatable.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("silo.toml"),
) -> None:
    """Read the data once, and write a commented silo.toml for the other commands."""
    with clear_errors():
        if out.exists():
            raise OutputUnwritable(f"--out: {out} exists already; remove it, or pass the name of a new file")
        from client_agent.data.load import RowOptions, load_examples
        from client_agent.training.data import resolved, with_test

        columns = _columns(column or [])
        options = RowOptions(row_format, columns, ignored=tuple(ignore or ()))
        sources = resolved(train, validation, test)
        loaded = load_examples(sources.train, options)
        unused = loaded.unused
        if sources.test is None:
            with_test(loaded.examples, train)
        held_out = {"validation": validation, "test": test}
        for source in (sources.validation, sources.test):
            if source is not None:
                unused |= load_examples(source, options).unused
        out.parent.mkdir(parents=True, exist_ok=True)
        text = _toml(model, train, held_out, url, loaded.format, options, is_found=row_format is None)
        out.write_text(text, "utf-8")
    print(f"{out}: {len(loaded.examples)} examples of the format {loaded.format} in {train}")
    for sentence in unused.sentences():
        print(sentence)
    print(f"next: tessera agent data --config {out}, then tessera agent check --config {out}")


def _columns(options: list[str]) -> tuple[tuple[str, str], ...]:
    """Return (name that the format expects, column of the data) of each `--column NAME=COLUMN`."""
    pairs = [option.partition("=") for option in options]
    for name, equals, column in pairs:
        if not (name and equals and column):
            raise SettingsUnusable(
                f"--column: {name + equals + column!r} is not NAME=COLUMN; pass the name that the format "
                "expects and the data's, such as prompt=question"
            )
    return tuple(sorted((name, column) for name, _, column in pairs))


def _column_lines(options: RowOptions) -> tuple[str, str]:
    """Return the lines of `columns` and `ignore_columns`, examples in comments where they are not set."""
    named = ", ".join(
        f"{json.dumps(name)} = {json.dumps(column, ensure_ascii=False)}" for name, column in options.columns
    )
    named = named or 'prompt = "question", completion = "answer"'
    ignored = json.dumps(options.ignored or ["label"], ensure_ascii=False)
    return (
        f"{'' if options.columns else '# '}columns = {{ {named} }}",
        f"{'' if options.ignored else '# '}ignore_columns = {ignored}",
    )


def _toml(
    model: str,
    train: str,
    held_out: dict[str, str | None],
    url: str,
    row_format: str,
    options: RowOptions,
    *,
    is_found: bool,
) -> str:
    def local(source: str) -> str:
        """Return a path, perhaps with a split behind a colon, that is right wherever the agent is started."""
        folder, colon, split = source.rpartition(":")
        if Path(source).exists():
            source = str(Path(source).absolute())
        elif colon and Path(folder).is_dir():
            source = f"{Path(folder).absolute()}:{split}"
        return json.dumps(source, ensure_ascii=False)

    held_out_lines = "\n".join(
        f"{name} = {local(source)}" if source is not None else f'# {name} = "{name}.jsonl"'
        for name, source in held_out.items()
    )
    format_line = f'{"# " if is_found else ""}format = "{row_format}"'
    columns_line, ignored_line = _column_lines(options)
    return f"""\
# A silo of Tessera. `tessera agent check` verifies it; the environment overrides it (TESSERA_AGENT_<OPTION>).

# The coordinator.
url = {json.dumps(url)}

# The base model: a folder, a .gguf file or a hub id. On a GPU, quantization = "nf4" holds it in 4 bits.
model = {local(model)}
# quantization = "nf4"
# The model that all silos of the federation share, if it is not this one.
# pivot_model = "..."

# Training data. Without `test`, a fifth of `train` is held out for scores; without `validation`, a tenth of
# the rest chooses the learning rate and the better model.
train = {local(train)}
{held_out_lines}
# What a row is; found by its columns if it is not set. Columns with other names are mapped.
{format_line}
{columns_line}
# Columns, and keys of turns, that are as if they were not there.
{ignored_line}
# skip_bad_rows = true

# A chat template for a base model without one: plain, or the path of a .jinja file.
# chat_template = "plain"
# Several short texts in one row, and the moments of large adapters in 8 bits.
# packing = true
# optimizer = "adamw8bit"

# Limits of this silo, whatever a plan allows.
# max_epsilon = 8.0
# min_voices = 2
"""
