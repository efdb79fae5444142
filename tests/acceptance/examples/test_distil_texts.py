"""The public texts of the study of distillation: reproducible, of both tasks, of no silo."""

from __future__ import annotations

import json
from pathlib import Path

from examples.studies.make_distil_texts import FILE, NAMES, TEXTS, texts
from schemas.messages.alignment import Anchors


def test_the_stored_file_is_reproducible() -> None:
    anchors = Anchors.model_validate_json(FILE.read_text())
    assert json.loads(FILE.read_text())["anchors"] == texts()
    assert len({anchor.id for anchor in anchors.anchors}) == len(NAMES) * TEXTS


def test_public_prompts_differ_from_all_silos_prompts() -> None:
    silo_prompts = set()
    for name in NAMES:
        for file in (Path(FILE).parent / "data" / name).glob("*.jsonl"):
            silo_prompts |= {json.loads(line)["prompt"] for line in file.read_text().splitlines()}
    assert len(silo_prompts) > 1000
    assert not silo_prompts & {text["prompt"] for text in texts()}
