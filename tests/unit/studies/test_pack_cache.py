"""The cache of alignment packs, which all federations of a study share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from client_agent.alignment.pack import Pack
from client_agent.errors import StudyUnusable
from client_agent.model.loading import BaseModel, load_base_model
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from studies import pack_cache
from studies.pack_cache import PackCache, body_for_federation, read_anchors
from studies.shared_files import FolderFiles
from tests.scene.agent_processes import EXAMPLES, MODELS

ADAPTER = AdapterPlan(rank=4, roles=("v",))


@pytest.fixture(scope="module")
def pivot() -> BaseModel:
    return load_base_model(str(MODELS["S"]), device=torch.device("cpu"))


def pack_files(
    folder: Path, pivot: BaseModel, adapter: AdapterPlan = ADAPTER, anchors: int = 64
) -> list[str]:
    """Request the pivot's pack; return the activities that it needed."""
    activities: list[str] = []
    cache = PackCache(FolderFiles(folder), read_anchors(EXAMPLES / "anchors.json").anchors)
    plan = AlignmentPlan(pivot=pivot.slug, anchors=anchors)
    assert cache.pack(pivot, pivot, adapter, plan, activities.append).manifest.selected
    return activities


def test_a_pack_is_made_once_for_its_inputs(tmp_path: Path, pivot: BaseModel) -> None:
    assert pack_files(tmp_path, pivot) == [f"aligning {pivot.slug}"]
    assert pack_files(tmp_path, pivot) == []
    assert pack_files(tmp_path, pivot, AdapterPlan(rank=4, roles=("v",), same_architecture_rank=2)) == []
    assert pack_files(tmp_path, pivot, AdapterPlan(rank=8, roles=("v",)))
    assert pack_files(tmp_path, pivot, AdapterPlan(rank=4, roles=("v",), target_modules=("b1.v",)))
    assert pack_files(tmp_path, pivot, anchors=72)


def test_a_pack_of_other_code_is_not_reused(
    tmp_path: Path, pivot: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_files(tmp_path, pivot)
    monkeypatch.setattr(pack_cache, "code_of_packs", lambda: "another version's")
    assert pack_files(tmp_path, pivot) == [f"aligning {pivot.slug}"]
    assert len(list(tmp_path.glob("packs/*.safetensors"))) == 2


def test_a_federations_pack_has_the_cached_frames(tmp_path: Path, pivot: BaseModel) -> None:
    pack_files(tmp_path, pivot)
    (file,) = tmp_path.glob("packs/*.safetensors")
    stored = Pack.from_body(file.read_bytes())
    sent = Pack.from_body(body_for_federation(stored, "fed_1"))
    assert sent.manifest.federation == "fed_1"
    assert sent.manifest.alignment_set == stored.manifest.alignment_set
    assert all((sent.tensors[name] == values).all() for name, values in stored.tensors.items())


def test_missing_or_invalid_anchors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyUnusable, match=r"anchors: .* cannot be read"):
        read_anchors(tmp_path / "nothing.json")
    (tmp_path / "other.json").write_text('{"anchors": []}')
    with pytest.raises(StudyUnusable, match="is not a file of anchor texts"):
        read_anchors(tmp_path / "other.json")
