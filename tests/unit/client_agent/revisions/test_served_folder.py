"""The folder that a server reads: whole revisions, one link, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from client_agent.errors import ServedRevisionRefused
from client_agent.revisions.served_folder import ServedFolder, parsed_label
from tests.unit.client_agent.revisions.stored_rounds import export

TENSORS = "adapter_model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> ServedFolder:
    served = ServedFolder(tmp_path / "served")
    for number in (1, 2, 10):
        export(served, number)
    return served


@pytest.mark.parametrize(
    "text", ["aster", "aster@", "aster@0", "aster@07", "@7", "a/b@7", "a@b@7", "aster@7 "]
)
def test_other_texts_are_no_labels(text: str) -> None:
    assert parsed_label(text) is None


def test_exported_revision_is_read_and_verified(folder: ServedFolder) -> None:
    revision, digest = folder.read("aster@2")
    assert (revision.label, revision.round) == ("aster@2", 2)
    assert digest.startswith("sha256:")
    folder.verify(revision)
    assert folder.labels() == ["aster@1", "aster@2", "aster@10"]
    assert folder.numbers("aster") == [1, 2, 10]
    assert folder.numbers("birch") == []
    assert (folder.path / "aster@2" / TENSORS).stat().st_mode & 0o777 == 0o640
    assert (folder.path / "aster@2" / "more").stat().st_mode & 0o777 == 0o750


def test_folder_in_place_of_the_link_serves_nothing(folder: ServedFolder) -> None:
    (folder.path / "current").mkdir()
    assert folder.current() is None


def test_link_moves_by_one_rename(folder: ServedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.current() is None
    assert folder.point("aster@1")
    assert not folder.point("aster@1")
    targets = []
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        targets.append(folder.current())
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    folder.point("aster@2")
    assert (targets, folder.current()) == (["aster@1"], "aster@2")
    # Relative, so that the folder works where it is mounted.
    assert os.readlink(folder.path / "current") == "aster@2"


def test_folder_in_place_of_the_link_is_refused(folder: ServedFolder) -> None:
    (folder.path / "current").mkdir()
    with pytest.raises(ServedRevisionRefused, match="not a link; move it away"):
        folder.point("aster@1")


def _replaced(place: Path) -> None:
    (place / TENSORS).write_bytes(b"tensors of X")


def _missing(place: Path) -> None:
    (place / TENSORS).unlink()


def _foreign(place: Path) -> None:
    (place / "adapter_model.bin").write_bytes(b"code")


def _linked(place: Path) -> None:
    content = (place / TENSORS).read_bytes()
    (place / TENSORS).unlink()
    (place.parent / "elsewhere").write_bytes(content)
    (place / TENSORS).symlink_to(place.parent / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_replaced, "was replaced after the export"),
        (_missing, "is missing"),
        (_foreign, "is not of the export"),
        (_linked, "was replaced after the export"),
    ],
)
def test_changed_files_are_refused(folder: ServedFolder, damage: Callable[[Path], None], reason: str) -> None:
    revision, _ = folder.read("aster@2")
    damage(folder.path / "aster@2")
    with pytest.raises(ServedRevisionRefused, match=reason):
        folder.verify(revision)
    folder.verify(folder.read("aster@1")[0])


def test_renamed_revision_is_refused(folder: ServedFolder) -> None:
    os.rename(folder.path / "aster@2", folder.path / "aster@3")
    with pytest.raises(ServedRevisionRefused, match="holds aster@2: it was renamed or replaced"):
        folder.read("aster@3")


def test_linked_revision_is_refused(folder: ServedFolder) -> None:
    (folder.path / "aster@3").symlink_to("aster@2")
    with pytest.raises(ServedRevisionRefused, match="is a link"):
        folder.read("aster@3")


@pytest.mark.parametrize("files", [{}, {"../key": "sha256:00"}, {"/etc/passwd": "sha256:00"}, None], ids=str)
def test_record_with_other_files_is_refused(folder: ServedFolder, files: object) -> None:
    record = folder.path / "aster@2" / "revision.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"files": files}))
    with pytest.raises(ServedRevisionRefused, match="missing or damaged"):
        folder.read("aster@2")


def test_absent_revision_names_those_present(folder: ServedFolder) -> None:
    for label in ("aster@3", "../aster@1", "current", "aster"):
        with pytest.raises(ServedRevisionRefused, match="it has aster@1, aster@2, aster@10"):
            folder.read(label)


def test_pruning_keeps_the_linked_revision(folder: ServedFolder) -> None:
    export(folder, 1, name="birch")
    folder.point("aster@1")
    folder.remove_numbers("aster", [1, 2])
    assert folder.labels() == ["aster@1", "aster@10", "birch@1"]


def test_sweep_removes_files_of_killed_processes(folder: ServedFolder) -> None:
    for name in (".aster@3.new", "..aster@3.new-x1", ".aster@1.old"):
        (folder.path / name).mkdir()
    (folder.path / ".current").symlink_to("aster@1")
    (folder.path / ".git").mkdir()
    folder.sweep()
    left = {entry.name for entry in folder.path.iterdir() if entry.name.startswith(".")}
    assert left == {".git"}
    assert folder.labels() == ["aster@1", "aster@2", "aster@10"]
