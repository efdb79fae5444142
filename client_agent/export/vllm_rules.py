"""Check an adapter against what vLLM loads: a rank that it knows, and modules by their plain names."""

from __future__ import annotations

from client_agent.errors import ExportUnsupported
from client_agent.model.loading import BaseModel

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts for --max-lora-rank."""

ARCHITECTURES = ("gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3")
"""The architectures of ours for which vLLM loads adapters."""


def served_rank(rank: int) -> int:
    """Return the smallest rank of vLLM that holds a rank.

    Raises:
        ExportUnsupported: the rank is larger than all of them.
    """
    larger = [allowed for allowed in RANKS if allowed >= rank]
    if not larger:
        raise ExportUnsupported(
            f"the adapter has rank {rank}, and vLLM serves at most {RANKS[-1]}; export with `--for merged`"
        )
    return larger[0]


def require_served(base: BaseModel) -> None:
    """Check that vLLM loads adapters for a base model's architecture.

    Raises:
        ExportUnsupported: it does not.
    """
    if base.architecture not in ARCHITECTURES:
        raise ExportUnsupported(
            f"vLLM loads adapters for {', '.join(ARCHITECTURES)}, not for {base.architecture}; export with "
            "`--for merged`"
        )
