"""Trained parts of the causal language models of transformers: the rows of docs/reference/architectures.md.

python -m tests.unit.client_agent.model.architecture_table   builds tiny models and writes it (5 minutes)
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any

import torch
from transformers import __version__ as transformers_version
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from client_agent.adapters.inject import inject_lora
from client_agent.adapters.peft_export import checkpoint_in_place, write_checkpoint
from client_agent.errors import AdapterUnreadable, UnknownArchitecture
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.model.named_parts import require_named
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import logits_of
from tests.scene.tiny_models import character_tokenizer
from tests.unit.client_agent.model.tiny_configs import MODEL_TYPES, UNBUILT, tiny_config, tiny_model

TABLE = Path(__file__).parents[4] / "docs" / "generate" / "architectures.json"
ADAPTER = AdapterPlan(kind="lora", rank=2)
TRAINING = TrainingPlan(steps=6, batch_size=2, max_length=32, learning_rate=0.02)
EXAMPLES = [Example("rev abc=", "cba"), Example("rev xy=", "yx")]
IDS = torch.tensor([[1, 5, 9, 14, 7, 22, 30, 6, 11]])
_LONGEST = 200
_ADVICE = re.compile(r"; use a decoder-only transformer.*| \(docs/reference/architectures.md\)")


def outcome(model_type: str, folder: Path) -> dict[str, Any]:
    """Load, train and export a tiny model; return what is trained, or the reason of the refusal."""
    try:
        require_named(tiny_config(model_type))
        tiny_model(model_type).save_pretrained(folder)
        character_tokenizer().save_pretrained(folder)
        base = load_base_model(str(folder), device=torch.device("cpu"))
    except UnknownArchitecture as refusal:
        return {"refused": shorten(_ADVICE.sub("", str(refusal)), _LONGEST, placeholder=" ...")}
    frozen = base.parts.frozen
    return {
        "roles": list(base.roles),
        "uneven": list(base.layer_shapes),
        "experts": bool(frozen.expert_layers),
        "without": list(frozen.linears),
        "peft": exported_as_trained(base, folder),
    }


def exported_as_trained(base: BaseModel, folder: Path) -> bool:
    """Check that the loss falls when an adapter trains, and return whether public peft computes the same."""
    bare = logits_of(base, IDS, use_cache=False)
    with inject_lora(base, ADAPTER) as adapter:
        losses = train_examples(base, adapter, EXAMPLES, TRAINING).losses
        assert losses[-1] < losses[0], losses
        trained = logits_of(base, IDS, use_cache=False)
        write_checkpoint(folder / "export", adapter.as_lora(), base, str(folder))
    size = float((trained - bare).norm())
    try:
        with checkpoint_in_place(base, folder / "export"):
            same = float((logits_of(base, IDS, use_cache=False) - trained).norm()) < 1e-4 * size
    except AdapterUnreadable:  # peft leaves a tensor out, or renames it
        same = False
    assert torch.equal(logits_of(base, IDS, use_cache=False), bare)
    return same


def stored() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(TABLE.read_text("utf-8"))
    return content


def main() -> None:
    torch.set_num_threads(1)
    table: dict[str, Any] = {}
    for name, model in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
        with TemporaryDirectory() as folder:
            row = {"refused": UNBUILT[name]} if name in UNBUILT else outcome(name, Path(folder))
        table[name] = {"class": model, **row}
        print(name, row, flush=True)
    assert table.keys() == {*MODEL_TYPES, *UNBUILT}
    content = {"transformers": transformers_version, "architectures": table}
    TABLE.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
