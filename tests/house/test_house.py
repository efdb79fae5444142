"""Rules of the code: names, docstrings, imports, and the OpenAPI document."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.app import create_app
from coordinator.settings import Settings

ROOT = Path(__file__).parents[2]
PACKAGES = ("coordinator", "client_agent", "studies", "schemas", "examples", "benchmarks", "docs")
UNWANTED_NAMES = ("utils", "common", "helpers", "misc")
UNWANTED_ENDINGS = ("Manager", "Service", "Handler")
SNAPSHOT = ROOT / "tests" / "unit" / "coordinator" / "openapi.json"


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


@pytest.mark.slow
def test_arguments_are_not_packed() -> None:
    """`f(*(a, b), c=d)` is `f(a, b, c=d)`, however many lines the formatter makes of it."""
    packed = [
        f"{path.relative_to(ROOT)}:{item.lineno}"
        for path in (*_sources(), *sorted((ROOT / "tests").rglob("*.py")))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call | ast.List | ast.Tuple | ast.Set)
        for item in (node.args if isinstance(node, ast.Call) else node.elts)
        if isinstance(item, ast.Starred) and isinstance(item.value, ast.Tuple)
    ]
    assert not packed


@pytest.mark.slow
def test_unwanted_names_of_files_and_classes_are_absent() -> None:
    files = [path for path in _sources() if path.stem in UNWANTED_NAMES or path.parent.name in UNWANTED_NAMES]
    classes = [
        node.name
        for path in _sources()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and node.name.endswith(UNWANTED_ENDINGS)
    ]
    assert not files
    assert not classes


def test_source_files_have_docstrings() -> None:
    # Without parsing 850 files: docstrings come first in every file, and are never empty.
    silent = [str(path) for path in _sources() if not re.match(r'r?"""\S', path.read_text("utf-8"))]
    assert not silent


@pytest.mark.slow
def test_coordinator_serves_without_torch(tmp_path: Path) -> None:
    program = f"""
import sys, threading, time
class Block:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "transformers", "peft", "bitsandbytes"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import httpx
from coordinator.app import create_app
from coordinator.server import Server
from coordinator.settings import Settings
settings = Settings(database_url="sqlite:///{tmp_path}/t.db", port=0, admin_token="x" * 20)
server = Server(create_app(settings), settings)
thread = threading.Thread(target=server.run)
thread.start()
while not server.started: time.sleep(0.02)
with httpx.Client(base_url=server.url, headers={{"Authorization": "Bearer " + "x" * 20}}) as http:
    plan = {{"name": "x", "strategy": {{"name": "fedmosaic"}}}}
    assert http.post("/v1/federations", json=plan).status_code == 201
server.handle_exit(15, None)
thread.join()
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _document() -> dict[str, Any]:
    return create_app(Settings(_env_file=None)).openapi()


def test_the_openapi_document_equals_its_snapshot() -> None:
    """After a wanted change: `python -m tests.house.test_house` writes the snapshot anew; read its diff."""
    assert _document() == json.loads(SNAPSHOT.read_text("utf-8"))


def test_openapi_references_resolve() -> None:
    document = _document()
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= document["components"]["schemas"].keys()


def test_operations_have_descriptions_examples_and_problem_responses() -> None:
    document = _document()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"{method} {path}"
            assert operation["description"], name
            assert "application/problem+json" in operation["responses"]["default"]["content"], name
            for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                assert media_type != "application/json" or "example" in content, name


def test_json_bodies_are_documented_as_strict_json() -> None:
    """A body that FastAPI itself declares is parsed leniently, before anyone is recognised."""
    for path, operations in _document()["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {})
            if "application/json" in body.get("content", {}):
                assert "strict JSON" in body["description"], f"{method} {path}"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(_document(), indent=1, ensure_ascii=False) + "\n", "utf-8")
