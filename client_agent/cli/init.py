"""The command `tessera agent init`: read the data once, and write a first silo.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_agent.cli.console import clear_errors
from client_agent.errors import ModelNotFound, OutputUnwritable, SettingsUnusable
from schemas.user_files import require_writable_folder, write_text

if TYPE_CHECKING:
    from client_agent.row_template import RowTemplate

beginning = typer.Typer()

_FORMATS = (
    "messages, prompt_completion, sharegpt, alpaca, text, or a task template: natural_instructions, mnli, "
    "commonsense_qa, squad, gsm8k, openbookqa, boolq, winogrande, arc_easy, arc_challenge"
)
_GGUF = ".gguf"
_OPTION_OF = {"prompt": "--template", "answer": "--answer", "options": "--options"}
_Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=COLUMN",
        help="Column of the data for a name of the format, such as prompt=question; repeatable.",
    ),
]
_Ignored = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Column, or key of turns, to ignore; repeatable.",
    ),
]
_Prompt = Annotated[
    str | None,
    typer.Option(
        metavar="PROMPT",
        help="In place of --format: the prompt of your own template, with columns in braces and \\n for a "
        "line break, such as 'Question: {text}\\nIt asks for a'; needs --answer.",
    ),
]
_Answer = Annotated[
    str | None, typer.Option(help="With --template: the answer to learn, such as '{coarse_label}'.")
]
_Choices = Annotated[
    str | None,
    typer.Option(
        "--options",
        help="With --template: the possible answers, either by index from 0, such as person,place,number, "
        "or by value of the column, such as 1=bad,2=good. Without them the answer is free text.",
    ),
]


@beginning.command("init")
def init(
    model: Annotated[str, typer.Option(help="The base model: a folder, a .gguf file or a hub id.")],
    train: Annotated[str, typer.Option(help="Training data: a file, a saved data set, or hub:<id>:<split>.")],
    test: Annotated[
        str | None, typer.Option(help="Held-out data.", show_default="a fifth of --train")
    ] = None,
    validation: Annotated[
        str | None, typer.Option(help="Validation data.", show_default="a tenth of the rest of --train")
    ] = None,
    url: Annotated[
        str, typer.Option(envvar="TESSERA_URL", help="The coordinator's URL.")
    ] = "http://127.0.0.1:8000",
    row_format: Annotated[
        str | None,
        typer.Option("--format", help=f"Format of a row: {_FORMATS}.", show_default="found by the columns"),
    ] = None,
    column: _Columns = None,
    ignore: _Ignored = None,
    template: _Prompt = None,
    answer: _Answer = None,
    choices: _Choices = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("silo.toml"),
) -> None:
    """Read the data once, and write a commented silo.toml for the other commands.

    The format of a row is detected from its columns, set with --format, or written as your own template:
    --template 'Review: {text}\\nIt is' --answer '{label}' --options bad,good.

    Example: `tessera agent init --model HuggingFaceTB/SmolLM2-135M-Instruct --train data.jsonl`
    """
    with clear_errors():
        if out.exists():
            raise OutputUnwritable(f"--out: {out} exists already; remove it, or pass the name of a new file")
        require_writable_folder(out.parent, "--out")
        _require_model(model)
        from client_agent.cli.silo_file import silo_toml
        from client_agent.data.load import RowOptions, load_examples
        from client_agent.training.data import resolved, with_test

        columns = _columns(column or [])
        row_template = _template(template, answer, choices, row_format, columns)
        options = RowOptions(row_format, columns, ignored=tuple(ignore or ()), template=row_template)
        sources = resolved(train, validation, test)
        loaded = load_examples(sources.train, options)
        unused = loaded.unused
        if sources.test is None:
            # Only to find out now whether enough examples are left to hold some out.
            with_test(loaded.examples, train)
        held_out = {"validation": validation, "test": test}
        for source in (sources.validation, sources.test):
            if source is not None:
                unused |= load_examples(source, options).unused
        out.parent.mkdir(parents=True, exist_ok=True)
        text = silo_toml(model, train, held_out, url, loaded.format, options)
        write_text(out, text, "--out")
    of = "this template" if row_template is not None else f"the format {loaded.format}"
    print(f"{out}: {len(loaded.examples)} examples of {of} in {train}")
    for sentence in unused.sentences():
        print(sentence)
    if not _is_here(model):
        print(
            f"note: {model} is neither a folder on this machine nor in the hub's cache. The first command "
            "that loads the model fetches it from the Hugging Face hub; check the name"
        )
    print(f"next: tessera agent data --config {out}, then tessera agent check --config {out}")


def _require_model(model: str) -> None:
    """Check that a model on this machine can be one; a hub id is not looked up.

    Raises:
        ModelNotFound: a folder has no config.json, or a file is missing or of another format.
    """
    path, remedy = Path(model), "pass the folder of a model, a .gguf file or a hub id"
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"--model: {model} has no config.json, so it is not a model; {remedy}")
    elif path.is_file():
        if path.suffix.lower() != _GGUF:
            raise ModelNotFound(f"--model: {model} is a file, but no {_GGUF} file; {remedy}")
    # Anything else may be a hub id.
    elif model.startswith((".", "/", "~")) or model.lower().endswith(_GGUF):
        raise ModelNotFound(f"--model: {model} does not exist; {remedy}")


def _is_here(model: str) -> bool:
    """Whether a model is a folder or file on this machine, or in the hub's cache."""
    if Path(model).exists():
        return True
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except HFValidationError:  # neither a folder nor a hub id
        return False


def _template(
    prompt: str | None,
    answer: str | None,
    choices: str | None,
    row_format: str | None,
    columns: tuple[tuple[str, str], ...],
) -> RowTemplate | None:
    """Return the template of the options; None = there is none.

    Raises:
        SettingsUnusable: it is incomplete, or unclear, or beside --format or --column.
    """
    if prompt is None:
        if answer is not None or choices is not None:
            raise SettingsUnusable("--answer and --options are parts of a template; add --template PROMPT")
        return None
    from pydantic import ValidationError

    from client_agent.data.templates import template_names
    from client_agent.row_template import RowTemplate
    from schemas.messages.faults import faults_of

    if prompt in template_names():
        raise SettingsUnusable(f"--template: {prompt} is a built-in template; pass it as --format {prompt}")
    if row_format is not None or columns:
        raise SettingsUnusable(
            "--template replaces --format and --column, since its braces name the columns; leave both out"
        )
    if answer is None:
        raise SettingsUnusable("--template needs --answer, such as --answer '{label}'")
    # Shells pass \n as two characters.
    written = {"prompt": prompt.replace("\\n", "\n"), "answer": answer.replace("\\n", "\n")}
    try:
        return RowTemplate.model_validate(written | {"options": _choices(choices)})
    except ValidationError as error:
        faults = faults_of(error.errors(include_input=False, include_url=False), RowTemplate)
        lines = [f"{_OPTION_OF.get(path.partition('.')[0], '--template')} {text}" for path, text in faults]
        raise SettingsUnusable("; ".join(lines)) from error


def _choices(written: str | None) -> list[str] | list[tuple[str, str]] | None:
    """Return the options of `a,b`, or of `1=a,2=b` with the values that they stand for."""
    if written is None:
        return None
    entries = written.split(",")
    pairs = [entry.partition("=") for entry in entries]
    return [(value, text) for value, _, text in pairs] if all(equals for _, equals, _ in pairs) else entries


def _columns(options: list[str]) -> tuple[tuple[str, str], ...]:
    """Return (name that the format expects, column of the data) of each `--column NAME=COLUMN`."""
    pairs = [option.partition("=") for option in options]
    for name, equals, column in pairs:
        if not (name and equals and column):
            raise SettingsUnusable(
                f"--column: {name + equals + column!r} is not NAME=COLUMN; pass a name of the format and "
                "the column of the data, such as prompt=question"
            )
    return tuple(sorted((name, column) for name, _, column in pairs))
