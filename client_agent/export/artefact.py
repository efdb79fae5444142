"""Write an export into a folder, load it again with the public libraries, and compare the held-out losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, assert_never

import numpy as np
import torch

from client_agent.adapters.base import LoraFactors
from client_agent.adapters.peft_export import (
    below_layer,
    checkpoint_in_place,
    layer_number,
    padded,
    write_checkpoint,
)
from client_agent.export.gguf_lora import FILE as GGUF_FILE
from client_agent.export.gguf_lora import read_gguf, require_supported, write_gguf
from client_agent.export.merge import dtype_of_merged, write_merged
from client_agent.export.modelfile import write_modelfile
from client_agent.export.vllm_rules import require_served, served_rank
from client_agent.model.architectures import linear_shape
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.training.evaluate import evaluate
from client_agent.training.silo import Silo
from schemas.messages.federations import ScoresPlan

Target = Literal["peft", "vllm", "gguf", "merged"]


@dataclass(frozen=True, slots=True)
class Artefact:
    """An export: its format, the name of its model, and where the base model is.

    Attributes:
        source: the folder or hub id of the dense base model on this machine.
        base_name: the base model in the files of the export, without a path: its hub id, or its slug.
        base_file: the base model as Ollama's Modelfile names it: a file or folder beside it, or a hub id.
        chat: whether the silo trains on chats.
        dtype: of merged weights; None = that of the base model's files, or float32 where this loses too much.
    """

    target: Target
    name: str
    source: str
    base_name: str
    base_file: str
    chat: bool
    dtype: torch.dtype | None = None

    def require_possible(self, base: BaseModel) -> None:
        """Check the format against the architecture.

        Raises:
            ExportUnsupported: the format does not support it.
        """
        if self.target == "gguf":
            require_supported(base)
        if self.target == "vllm":
            require_served(base)

    def write(self, folder: Path, factors: Mapping[str, LoraFactors], base: BaseModel) -> None:
        """Write the files of the format; factors have no bias unless the format is `merged`.

        Raises:
            ExportUnsupported: vLLM serves no rank as large.
        """
        match self.target:
            case "peft":
                write_checkpoint(folder, factors, base, self.base_name)
            case "vllm":
                write_checkpoint(folder, _for_vllm(factors, base), base, self.base_name)
            case "gguf":
                write_gguf(folder / GGUF_FILE, factors, base, self.name)
                write_modelfile(folder, base, self.base_file, chat=self.chat)
            case "merged":
                write_merged(folder, self.source, factors, base, self.dtype)
            case _:
                assert_never(self.target)

    def loss(self, folder: Path, silo: Silo, scoring: ScoresPlan, max_length: int) -> float:
        """Load the files with the public libraries and return the held-out loss; the base model is bare."""
        match self.target:
            case "peft" | "vllm":
                return _loss_with_peft(folder, silo, scoring, max_length)
            case "gguf":
                # There is no llama.cpp here: its file is read back, and loaded by peft.
                with TemporaryDirectory() as place:
                    factors = read_gguf(folder / GGUF_FILE, silo.base)
                    write_checkpoint(Path(place), factors, silo.base, self.base_name)
                    return _loss_with_peft(Path(place), silo, scoring, max_length)
            case "merged":
                # The wider of both, so that the score shows what the files lost and not what loading lost.
                dtype = torch.promote_types(silo.base.model.dtype, dtype_of_merged(folder))
                merged = load_base_model(str(folder), device=silo.base.device, dtype=dtype)
                return held_out_loss(merged, silo, scoring, max_length)
            case _:
                assert_never(self.target)


def held_out_loss(base: BaseModel, silo: Silo, scoring: ScoresPlan, max_length: int) -> float:
    """Return the loss of a model on the silo's held-out examples; nothing is generated."""
    without = scoring.model_copy(update={"new_tokens": 0})
    return evaluate(base, silo.data.test, without, max_length=max_length).loss


def _loss_with_peft(folder: Path, silo: Silo, scoring: ScoresPlan, max_length: int) -> float:
    with checkpoint_in_place(silo.base, folder):
        return held_out_loss(silo.base, silo, scoring, max_length)


def _for_vllm(factors: Mapping[str, LoraFactors], base: BaseModel) -> dict[str, LoraFactors]:
    """Return factors of a rank that vLLM serves; modules that plain names select too get zeros."""
    rank = served_rank(max(len(lora.A) for lora in factors.values()))
    names = {below_layer(path) for path in factors}
    layers = {layer_number(path) for path in factors}
    everywhere = {
        linear.path: linear_shape(base.model.get_submodule(linear.path))
        for layer in layers
        for linear in base.parts.roles[layer].values()
        if below_layer(linear.path) in names
    }
    # A plain name in the config selects its module in every layer, also where nothing was trained.
    zeros = {
        path: LoraFactors(np.zeros((0, d_in), np.float32), np.zeros((d_out, 0), np.float32), None)
        for path, (d_out, d_in) in everywhere.items()
    }
    return {path: padded(lora, rank) for path, lora in {**zeros, **factors}.items()}
