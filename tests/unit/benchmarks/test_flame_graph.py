"""Profiles of the server: shares by function of the coordinator, and flame graphs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

from rich.console import Console

from benchmarks import flame_graph

STACKS = [
    [["threading.py:run", "coordinator/db/engine.py:run", "sqlalchemy/engine/base.py:execute"], 0.3, 0.5],
    [["threading.py:run", "coordinator/db/engine.py:run", "<frozen io>:read"], 0.1, 0.1],
    [["MainThread: shorter than a sample"], 0.1, 0.0],
]


def test_profiles_are_shown_and_drawn(tmp_path: Path) -> None:
    samples = tmp_path / "profile.jsonl"
    samples.write_text("\n".join(map(json.dumps, STACKS)), "utf-8")
    profile = flame_graph.read(samples)
    console = Console(record=True, width=100)
    flame_graph.show(console, "processor", profile["processor"])
    shown = console.export_text()
    assert "0.5 s in all" in shown
    assert "80%" in shown, "the stack counts for the function of the coordinator"
    flame_graph.draw(tmp_path / "profile.svg", profile["wall"])
    titles = [
        title.text for title in ET.parse(tmp_path / "profile.svg").iter() if title.tag.endswith("title")
    ]
    assert "<frozen io>:read 0.100 s" in titles
