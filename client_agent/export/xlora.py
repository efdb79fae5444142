"""Export experts that are weighed by token as an X-LoRA (arXiv 2402.07148), which public peft loads.

Every class of the X-LoRA is an ordinary LoRA of the shared expert beside a chosen specialist. The weights of
a token's specialists sum to 1, so that the shared expert has weight 1 in the sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from client_agent.adapters.base import LoraFactors
from client_agent.adapters.peft_export import metadata_for, peft_model, write_checkpoint
from client_agent.adapters.peft_folder import CLASSIFIER, CONFIG, TENSORS, light_peft
from client_agent.errors import ExportInexact, ExportUnsupported
from client_agent.experts.routed_experts import RoutedExperts, routed_by_token
from client_agent.export.artefact import held_out_loss
from client_agent.export.facts import TrainingFacts
from client_agent.export.fold_shift import shifted, without_zero_shifts
from client_agent.export.folder import place, require_free
from client_agent.export.job import AdapterSource, Export, ExportResult, Finisher, Losses, largest_difference
from client_agent.model.examples import encode_some, probe_set
from client_agent.model.loading import BaseModel
from client_agent.model.quantization import is_quantised, precision_of
from client_agent.model.tokens import TokenizedText, collate, pad_id
from client_agent.storage.files import write_durably
from client_agent.training.silo import Silo
from schemas.maths.bank import SHARED, group_of

_CLASSIFIER = f"base_model.{CLASSIFIER}.layers.0"
_SMALLEST = 1e-12

Factors = dict[str, LoraFactors]


@dataclass(frozen=True, slots=True)
class XLoraFiles:
    """The content of a routed export.

    Attributes:
        shared: the shared expert alone, by module path.
        classes: the shared expert beside each chosen specialist, by its ordinal.
        rows: U (e, d) of the router, float32.
        offsets: c + gamma ln r (e,), float32.
        gamma: the temperature of the softmax.
    """

    shared: Factors
    classes: dict[int, Factors]
    rows: np.ndarray
    offsets: np.ndarray
    gamma: float

    @classmethod
    def of(cls, adapter: RoutedExperts) -> XLoraFiles:
        """Return the content of an adapter that is in place.

        Raises:
            ExportUnsupported: an expert shifts outputs, which an X-LoRA does not weigh.
        """
        private, chosen, gamma = adapter.private_state(), adapter.chosen, adapter.routing.gamma
        prior = [log(max(adapter.responsibilities[expert], _SMALLEST)) for expert in chosen]
        c = np.array([private[f"router.x{expert}.c"] for expert in chosen])
        return cls(
            shared=_without_shift(adapter.bank.as_lora_of({SHARED: 1.0})),
            classes={
                expert: _without_shift(adapter.bank.as_lora_of({SHARED: 1.0, expert: 1.0}))
                for expert in chosen
            },
            rows=np.stack([private[f"router.x{expert}.u"] for expert in chosen]),
            # peft divides by the temperature; the prior is not divided in the router, so it is multiplied
            # before.
            offsets=(c + gamma * np.array(prior)).astype(np.float32),
            gamma=gamma,
        )

    def write(self, folder: Path, base: BaseModel, model_name: str) -> None:
        """Write the X-LoRA, and below it each class and the shared expert as an ordinary LoRA.

        The config names the classes relative to the folder. peft's own `save_pretrained` would drop the
        classifier.
        """
        for expert, factors in {SHARED: self.shared, **self.classes}.items():
            write_checkpoint(folder / group_of(expert), factors, base, model_name)
        tensors = {f"{_CLASSIFIER}.weight": self.rows, f"{_CLASSIFIER}.bias": self.offsets}
        write_durably(folder / TENSORS, safetensors.numpy.save(tensors, metadata=metadata_for(base)))
        with light_peft():
            from peft import XLoraConfig  # slow to import

        config = XLoraConfig(
            task_type="CAUSAL_LM",
            base_model_name_or_path=model_name,
            inference_mode=True,
            hidden_size=base.hidden_size,
            adapters=self.adapters(Path()),
            # One linear layer, which is what the router is.
            xlora_depth=1,
            softmax_temperature=self.gamma,
            layerwise_scalings=False,
        )
        text = json.dumps(cast(Any, config).to_dict(), indent=2, sort_keys=True)
        write_durably(folder / CONFIG, f"{text}\n".encode())

    def adapters(self, folder: Path) -> dict[str, str]:
        """Return the paths of the classes by their number, which peft demands as names."""
        return {str(n): str(folder / group_of(expert)) for n, expert in enumerate(self.classes)}


def _without_shift(factors: Factors) -> Factors:
    plain = without_zero_shifts(factors)
    if shifted(plain):
        raise ExportUnsupported(
            "experts shift outputs (Q), which an X-LoRA does not weigh; train with `adapter.bias = false` in "
            "the plan, or export an ordinary LoRA with --flat"
        )
    return plain


def export_routed(
    silo: Silo,
    source: AdapterSource,
    facts: TrainingFacts,
    model_name: str,
    out: Path,
    finish: Finisher,
    *,
    force: bool = False,
) -> Export:
    """Export experts and router into a folder; nothing is written there unless public peft agrees.

    `model_name` is the name of the base model in the files; `force` replaces an export in the folder.

    Raises:
        ExportUnsupported: the adapter is not weighed by token, or the base model is quantised or of an
            architecture whose X-LoRA public peft does not load.
        ExportInexact: public peft computes another held-out loss.
        OutputUnwritable: the folder has other files.
    """
    require_free(out, force=force)
    base, scoring, longest = silo.base, facts.scoring, facts.max_length
    _require_supported(base)
    bare = held_out_loss(base, silo, scoring, longest)
    with source.attach(silo) as (placed, origin):
        routed = routed_by_token(placed)
        if routed is None:
            raise ExportUnsupported(
                "--routed is for experts that are weighed by token, and this adapter is equal to an ordinary "
                "LoRA; leave it out"
            )
        reference = held_out_loss(base, silo, scoring, longest)
        files = XLoraFiles.of(routed)
    chosen = probe_set(silo.data.test, scoring.examples)
    texts = encode_some(base, chosen, scoring.examples, longest)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as name:
        folder = Path(name)
        files.write(folder, base, model_name)
        with xlora_in_place(base, folder, files.adapters(folder)) as model:
            exported = _mean_loss(base, model, texts)
        stored = facts.scores["loss"].value if facts.scores is not None else None
        limit = largest_difference(bare, base.model.dtype)
        written = ExportResult({}, False, origin, Losses(bare, stored, reference, exported, limit=limit))
        if not written.losses.is_kept:
            raise ExportInexact(
                f"public peft computes a held-out loss of {exported:.4f}, and the adapter has "
                f"{reference:.4f}; nothing was written. Export an ordinary LoRA with --flat, and please "
                "report it with the versions of peft and transformers"
            )
        finish(folder, written)
        moved = place(folder, out, base.slug, force=force)
    return Export(written, moved)


@contextmanager
def xlora_in_place(base: BaseModel, folder: Path, adapters: dict[str, str]) -> Iterator[nn.Module]:
    """Load an X-LoRA around the base model with public peft, and yield the model; remove it on exit.

    `adapters` are the folders of its classes, wherever the files are now.

    Raises:
        AdapterInPlace, AdapterUnreadable: see `peft_model`.
    """
    config = cast(Any, base.model.config)
    uses_cache = getattr(config, "use_cache", None)
    config.use_cache = False  # peft refuses a model with a cache
    try:
        with peft_model(base, folder, classes=adapters) as model:
            yield model
    finally:
        config.use_cache = uses_cache


@torch.no_grad()
def _mean_loss(base: BaseModel, model: nn.Module, texts: Sequence[TokenizedText]) -> float:
    """Compute the mean loss of texts in nats per answer token, through the whole model, one by one."""
    losses: list[Tensor] = []
    for text in texts:
        batch = collate([text], pad=pad_id(base.tokenizer)).to(base.device)
        logits = model(input_ids=batch.ids, attention_mask=batch.attention).logits[0].float()  # (t, V)
        answers = torch.tensor([*text.answer[1:], False], device=base.device)
        losses.append(nnf.cross_entropy(logits[answers], batch.targets[0][answers], reduction="none").cpu())
    return float(torch.cat(losses).double().mean())


def _require_supported(base: BaseModel) -> None:
    """Raise `ExportUnsupported` for what public peft does not load as an X-LoRA (0.21.2)."""
    if is_quantised(base.model):
        raise ExportUnsupported(
            f"public peft loads no X-LoRA on a model in {precision_of(base.model)}; set quantization to none "
            "for the export, or export an ordinary LoRA with --flat"
        )
    if base.parts.decoder.partition(".")[0] != "model":  # the prefix to which it changes all names
        raise ExportUnsupported(
            f"public peft loads no X-LoRA on {base.architecture}, whose layers are in "
            f"{base.parts.decoder}; export an ordinary LoRA with --flat"
        )
