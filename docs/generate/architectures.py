"""The page of base-model architectures: what is trained in each, or why it is refused.

The rows are those of `architectures.json`, which a test compares with a tiny model of each architecture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from docs.generate.markdown import code, page_of, table

_TABLE: Final = Path(__file__).parent / "architectures.json"
_SHOWN: Final = 3

_INTRODUCTION = """\
An adapter changes the linear layers of seven *roles*: `q`, `k`, `v`, `o` of the attention, `gate`, `up`,
`down` of the feed-forward layer. The agent finds them by the names and shapes of the layers, so no
architecture needs its own entry. When it loads the model, the agent measures properties that names do not
show, on two texts of six tokens:

- the role of each row of a fused layer (`query_key_value`, `gate_up_proj`);
- that no token sees a later token, and that the outputs of the head, with the factor and the softcap that
  the config suggests, are the model's logits;
- that every adapted layer reads each token once.

A model that fails is refused before training, and `tessera agent check` states the reason. The table was
created with transformers {version}: a tiny random model of each architecture was loaded, trained for a few
steps, exported, and loaded again with public peft. Its rows are tests (`tests/unit/client_agent/model`)."""

_KINDS = """\
- **Mixtures of experts**: the attention and the shared experts are trained, and dense feed-forward layers
  where there are some. Routed experts and routers stay frozen: an expert sees few tokens of a silo, and a
  change of the router changes beside which experts the adapters of all other silos act. `agent check`,
  the log and the model card of an export name what is frozen. With `quantization`, routed experts that
  are one parameter of all experts stay in the model's own precision; `agent check` names their size.
- **Layers that differ**: a role need not be in every layer, nor in one shape. The profile of such a
  client lists the layers. P and Q are placed where the last layer of a block has the role.
- **Multi-head latent attention** (DeepSeek): `q` is the layer from the compressed query to the heads, `k`
  and `v` are rows of the layer from the compressed keys and values to the heads.
- **Hybrids**: state-space and linear-attention layers stay frozen, unless their projections have the
  names of an attention's."""


def page() -> str:
    """Return docs/reference/architectures.md."""
    content = json.loads(_TABLE.read_text("utf-8"))
    rows: Mapping[str, Mapping[str, Any]] = content["architectures"]
    trained = [[code(name), _roles(row), _notes(row)] for name, row in rows.items() if "roles" in row]
    refused = [[code(name), row["refused"]] for name, row in rows.items() if "refused" in row]
    return page_of(
        "Architectures",
        "`docs/generate/architectures.json`",
        _INTRODUCTION.format(version=content["transformers"]),
        f"## Trained\n\n{len(trained)} of {len(rows)} architectures, by the `model_type` of config.json.",
        table(["architecture", "roles", "remarks"], trained),
        "### Kinds",
        _KINDS,
        "## Refused",
        table(["architecture", "reason"], refused),
    )


def _roles(row: Mapping[str, Any]) -> str:
    return "all" if len(row["roles"]) == 7 else ", ".join(row["roles"])


def _notes(row: Mapping[str, Any]) -> str:
    without = [code(name) for name in row["without"]]
    more = ", ..." if len(without) > _SHOWN else ""
    notes = [
        "routed experts frozen" if row["experts"] else "",
        f"{', '.join(row['uneven'])} differ by layer" if row["uneven"] else "",
        f"no adapter on {', '.join(without[:_SHOWN])}{more}" if without else "",
        "" if row["peft"] else "exported with `--for merged` only",
    ]
    return "; ".join(note for note in notes if note)
