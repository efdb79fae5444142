"""Study files: sources of all kinds, defaults of silos, copies, folders of data and models."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.errors import StudyUnusable
from studies.partition import draw_examples
from studies.study import Study, read_study
from studies.worker_protocol import Setup
from tests.scene.agent_processes import MODELS
from tests.scene.studies import write_pools

SILOS = """
[defaults]
model = "tiny"
examples = 4
validation = "hub:org/set:validation"

[[silo]]
name = "copy"
copies = 2
train = "copy"
group = "copy"

[[silo]]
name = "flip"
train = "flip/train.jsonl"
test = "hub:org/set:main:test"
examples = 6
format = "prompt_completion"
"""


def write(folder: Path, content: str) -> Path:
    file = folder / "study.toml"
    file.write_text(content)
    return file


def with_folders(folder: Path) -> tuple[Path, Path]:
    """Make a folder of data and a folder of models."""
    data, models = folder / "rows", folder / "models"
    write_pools(data)
    models.mkdir()
    (models / "tiny").symlink_to(MODELS["S"])
    return data, models


def test_silos_have_the_defaults_and_numbered_copies(tmp_path: Path) -> None:
    read = read_study(write(tmp_path, "seeds = [0]\n" + SILOS))
    assert [silo.name for silo in read.silo] == ["copy-1", "copy-2", "flip"]
    assert [silo.examples for silo in read.silo] == [4, 4, 6]
    assert [silo.group for silo in read.silo] == ["copy", "copy", None]
    assert {silo.model for silo in read.silo} == {"tiny"}  # no such folder: a hub id
    assert {silo.validation for silo in read.silo} == {"hub:org/set:validation"}
    assert read.silo[2].test == "hub:org/set:main:test"
    assert read.silo[0].train == str(tmp_path / "copy")
    assert read.name == "study"


def test_a_caller_may_change_the_number_of_copies(tmp_path: Path) -> None:
    file = write(tmp_path, "seeds = [0]\n" + SILOS)
    read = read_study(file, copies=3)
    assert [silo.name for silo in read.silo] == ["copy-1", "copy-2", "copy-3", "flip"]
    assert read.name == "study-x3"
    assert (read.with_tests(7).tests, read.with_tests(7).name) == (7, "study-x3-tests7")
    with pytest.raises(StudyUnusable, match="no silo of the study has copies"):
        read_study(write(tmp_path, "seeds = [0]\n" + SILOS.replace("copies = 2", "")), copies=3)


def test_named_folders_contain_sources_and_models(tmp_path: Path) -> None:
    data, models = with_folders(tmp_path)
    text = SILOS.replace('validation = "hub:org/set:validation"\n', "").replace(
        'test = "hub:org/set:main:test"', 'test = "flip/test.jsonl"'
    )
    named = read_study(write(tmp_path, 'data = "rows"\nmodels = "models"\n' + text))
    passed = Study.from_toml(write(tmp_path, 'data = "none"\n' + text), data=data, models=str(models))
    for read in (named, passed):
        assert {silo.model for silo in read.silo} == {str(MODELS["S"])}
        drawn = draw_examples(read.model_copy(update={"validation": 2}), 0)
        assert {name: len(silo_data.train) for name, silo_data in drawn.items()} == {
            "copy-1": 4,
            "copy-2": 4,
            "flip": 6,
        }


@pytest.mark.parametrize("field", ["data", "models"])
def test_a_missing_folder_names_its_option(tmp_path: Path, field: str) -> None:
    with pytest.raises(StudyUnusable, match=f"{field}: there is no folder .*none; pass one with --{field}"):
        read_study(write(tmp_path, f'{field} = "none"\n' + SILOS))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SILOS.replace('train = "copy"\n', ""), "validation and test need train"),
        (SILOS.replace("copies = 2", "copies = 0"), r"silo\.copies: must be a whole number from 1 on"),
        (SILOS.replace("[defaults]", "[defaults]\ncolour = 1"), r"silo\.0\.colour"),
        ("defaults = 3\n" + SILOS.replace("[defaults]", "[plan]"), "defaults: must be a table"),
        (SILOS + '[[source]]\nname = "a"\ntrain = "a"\n', "sources need a partition"),
        (SILOS + '[partition]\nkind = "by_task"\n', "silo copy-1 gets its data from the partition"),
        (SILOS.replace("[[silo]]", 'metrics = ["bleu"]\n[[silo]]', 1), r"silo\.0\.metrics"),
        ("data = 3\n" + SILOS, "data: must be the path of a folder"),
        ("validation = -1\n" + SILOS, "validation: Input should be"),
        ("", r"silo: missing; add it.*docs/reference/studies\.md describes the fields"),
        ("seed = [0]\n" + SILOS, r"seed: there is no such field; did you mean seeds\?"),
        (SILOS.replace("examples = 6", "exampels = 6"), r"silo\.2\.exampels: .* did you mean examples\?"),
    ],
)
def test_an_invalid_study_file_names_the_wrong_field(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(StudyUnusable, match=message):
        read_study(write(tmp_path, content))


def test_a_folder_as_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyUnusable, match="is a folder; pass the TOML file of a study"):
        read_study(tmp_path)


def test_a_silo_needs_train_or_a_partition(tmp_path: Path) -> None:
    bare = SILOS.replace('validation = "hub:org/set:validation"\n', "")
    for line in ('train = "copy"\n', 'train = "flip/train.jsonl"\n', 'test = "hub:org/set:main:test"\n'):
        bare = bare.replace(line, "")
    with pytest.raises(StudyUnusable, match="silo copy-1 needs train, or the study a partition"):
        read_study(write(tmp_path, bare))
    with pytest.raises(StudyUnusable, match="a partition needs at least one source"):
        read_study(write(tmp_path, bare + '[partition]\nkind = "by_task"\n'))
    source = '[[source]]\nname = "a"\ntrain = "a"\n'
    with pytest.raises(StudyUnusable, match="two sources are called a"):
        read_study(write(tmp_path, bare + '[partition]\nkind = "by_task"\n' + source + source))


def test_a_worker_receives_the_whole_study(tmp_path: Path) -> None:
    partitioned = """
tests = 4
[partition]
kind = "dirichlet"
alpha = 0.5
[[source]]
name = "copy"
train = "copy"
columns = { prompt = "q" }
[[silo]]
name = "a"
model = "org/model"
examples = 3
copies = 2
"""
    setup = Setup(study=read_study(write(tmp_path, partitioned)), out=tmp_path)
    again = Setup.model_validate_json(setup.model_dump_json())
    assert again.study == setup.study
    assert again.study.partition is not None
