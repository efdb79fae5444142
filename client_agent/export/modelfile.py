"""Write Ollama's Modelfile: base model, adapter, the prompt format of training, and stop texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerFast

from client_agent.export.chat_shape import ChatShape, chat_shape
from client_agent.export.gguf_lora import FILE as ADAPTER
from client_agent.model.loading import BaseModel

FILE = "Modelfile"


def write_modelfile(folder: Path, base: BaseModel, source: str, *, chat: bool) -> None:
    """Write the Modelfile beside the adapter.

    `source` is the base model relative to the Modelfile: a .gguf file, or a folder, which Ollama converts.
    With `chat` the silo trains on chats; otherwise the model reads a prompt unchanged, as in training.
    """
    shape = chat_shape(base.tokenizer) if chat else None
    lines = (
        ["# The base model; put it beside this file, or write its path here."] if source[:2] == "./" else []
    )
    lines += [f"FROM {source}", f"ADAPTER ./{ADAPTER}", ""]
    if shape is not None:
        lines += [f'TEMPLATE """{_go_template(shape)}"""']
        lines += [f'SYSTEM """{shape.system}"""'] if shape.system is not None else []
    elif chat:
        lines += [
            "# The chat template is not written in Ollama's language: Ollama uses that of the base model."
        ]
    else:
        lines += ['TEMPLATE """{{ .Prompt }}"""']
    lines += ["", *(f'PARAMETER stop "{_quoted(text)}"' for text in stop_texts(base, shape))]
    (folder / FILE).write_text("\n".join([*lines, ""]), "utf-8")


def stop_texts(base: BaseModel, shape: ChatShape | None) -> list[str]:
    """Return the special tokens that end an answer: the end tokens, and those of the chat template."""
    tokenizer = cast(Any, base.tokenizer)
    configured = getattr(base.model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    ends = [tokenizer.eos_token, *(tokenizer.decode([i]) for i in ids if i is not None)]
    fixed = "".join("".join(pair) for pair in shape.turns.values()) if shape is not None else ""
    ends += [token for token in special_tokens(tokenizer) if token in fixed]
    return list(dict.fromkeys(ends))


def special_tokens(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return all special tokens, those included that have no name in the tokenizer's settings."""
    added = cast(dict[int, Any], tokenizer.added_tokens_decoder)
    return [str(token.content) for token in added.values() if token.special]


def _go_template(shape: ChatShape) -> str:
    """Return the shape as a Go template over Ollama's .Messages."""
    branches = [
        f'{{{{ {"if" if i == 0 else "else if"} eq .Role "{role}" }}}}'
        f"{_literal(before)}{{{{ .Content }}}}{_literal(after)}"
        for i, (role, (before, after)) in enumerate(shape.turns.items())
    ]
    return f"{{{{ range .Messages }}}}{''.join(branches)}{{{{ end }}}}{{{{ end }}}}{_literal(shape.prompt)}"


def _literal(text: str) -> str:
    """Return a text as Go's template language writes it."""
    return text.replace("{{", '{{ "{{" }}')


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
