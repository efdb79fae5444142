"""Clients as strategies see them."""

from __future__ import annotations

from typing import Any

from coordinator.strategies.base import ClientFacts

FORM = (("P", (2, 2)),)


def client_facts(number: int, **changes: Any) -> ClientFacts:
    """Return the facts of a source `c000`, `c001`, ... with one module and ten examples."""
    facts: dict[str, Any] = {
        "client": f"c{number:03}",
        "base_model": "s",
        "alignment_set": None,
        "modules": {"b0.q": FORM},
        "age": 0,
        "examples": 10,
        "sketch": None,
        "sketch_model": "w",
        "is_source": True,
    }
    return ClientFacts(**(facts | changes))
