"""The text of a first silo.toml."""

from __future__ import annotations

import json
from pathlib import Path

from client_agent.data.load import RowOptions
from client_agent.row_template import RowTemplate


def silo_toml(
    model: str,
    train: str,
    held_out: dict[str, str | None],
    url: str,
    row_format: str,
    options: RowOptions,
) -> str:
    """Return the commented text of a first silo.toml; `row_format` is that of the rows."""

    def local(source: str) -> str:
        """Return a path, perhaps with a split behind a colon, as valid in any working folder."""
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
    ignored = _quoted(list(options.ignored) or ["label"])
    return f"""\
# A silo of Tessera. `tessera agent check --config FILE` verifies this file. Variables TESSERA_AGENT_<OPTION>
# override it.

# The coordinator.
url = {json.dumps(url)}

# The base model: a folder, a .gguf file or a hub id. On a GPU, quantization = "nf4" loads it in 4 bits.
model = {local(model)}
# quantization = "nf4"
# The model that all silos of the federation share, if it is not this one.
# pivot_model = "..."

# Training data. Without `test`, a fifth of `train` is held out for scores; without `validation`, a tenth of
# the rest chooses the learning rate and the better model.
train = {local(train)}
{held_out_lines}
{_row_lines(options, row_format)}
# Columns, and keys of turns, to ignore.
{"" if options.ignored else "# "}ignore_columns = {ignored}
# skip_bad_rows = true

# A chat template for a base model without one: plain, or the path of a .jinja file.
# chat_template = "plain"
# Several short texts in one row, and the moments of large adapters in 8 bits.
# packing = true
# optimizer = "adamw8bit"

# Limits of this silo: the agent refuses a plan that exceeds them.
# max_epsilon = 8.0
# max_delta = 1e-5
# min_voices = 2
# policy.strategies = ["fedmosaic", "fedavg"]
# policy.modules = ["q", "v"]
# policy.max_update_bytes = 5000000
# policy.sends = ["sketches", "scores", "progress"]

# Each state that is kept, in a folder for a server, with a link `current`; and a command that then runs.
# export.after_round = "peft"
# export.folder = "tessera-served"
# export.run = ["systemctl", "reload", "my-server"]
"""


def _row_lines(options: RowOptions, row_format: str) -> str:
    """Return the lines about the format of a row; those that are not set are commented examples."""
    if options.template is not None:
        return _template_lines(options.template)
    named = ", ".join(f"{_quoted(name)} = {_quoted(column)}" for name, column in options.columns)
    named = named or 'prompt = "question", completion = "answer"'
    return f'''\
# The format of a row; found by its columns if it is not set. `columns` maps columns with other names.
{"" if options.format is not None else "# "}format = "{row_format}"
{"" if options.columns else "# "}columns = {{ {named} }}
# Your own template in place of both.
# template.prompt = "Question: {{text}}\\nAnswer:"
# template.answer = "{{label}}"
# template.options = ["no", "yes"]'''


def _template_lines(template: RowTemplate) -> str:
    """Return the lines of the silo's own template."""
    lines = [
        "# A row's prompt and answer, with columns in braces, and the answers that are possible.",
        f"template.prompt = {_quoted(template.prompt)}",
        f"template.answer = {_quoted(template.answer)}",
    ]
    if template.is_table:
        named = ", ".join(f"{_quoted(value)} = {_quoted(text)}" for value, text in template.pairs)
        lines.append(f"template.options = {{ {named} }}")
    elif template.options is not None:
        lines.append(f"template.options = {_quoted(template.texts)}")
    return "\n".join(lines)


def _quoted(value: object) -> str:
    """Return a text, or a list of texts, as TOML."""
    return json.dumps(value, ensure_ascii=False)
