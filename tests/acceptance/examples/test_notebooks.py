"""The notebooks: complete runs, and no stored outputs."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from docs.generate.python_api import PARTS

FOLDER = Path(__file__).parents[3] / "examples" / "notebooks"
OWN_PACKAGES = {"client_agent", "coordinator", "examples", "schemas", "studies"}
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_notebooks_are_stored_without_outputs() -> None:
    assert NOTEBOOKS
    for file in NOTEBOOKS:
        cells = nbformat.read(file, as_version=4).cells
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), file


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_import_the_public_api_alone(file: Path) -> None:
    code = "\n".join(
        cell.source for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"
    )
    public = {part.exported_by: {name for _, name in part.names} for part in PARTS}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OWN_PACKAGES:
            assert {alias.name for alias in node.names} <= public.get(node.module, set()), node.module
        elif isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & OWN_PACKAGES


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # of the kernel's libraries
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_to_its_end(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=800, resources={"metadata": {"path": str(FOLDER)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert cells[-1].outputs
