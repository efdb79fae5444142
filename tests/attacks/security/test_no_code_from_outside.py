"""Code from outside: no unpickling or evaluation in a silo, and model folders loaded as data."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest
import torch

from client_agent.model.loading import load_base_model, load_tokenizer
from client_agent.rounds.strategy import load_strategy
from schemas.messages.federations import FederationPlan

ROOT = Path(__file__).parents[3]
EXECUTES = {"eval", "exec", "compile", "__import__"}
UNPICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def _violations(source: str) -> list[str]:
    violations = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            if call in EXECUTES or call == "torch.load":
                violations.append(call)
            violations += [
                f"{call}({keyword.arg})"
                for keyword in node.keywords
                if keyword.arg in ("trust_remote_code", "allow_pickle")
                and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
            ]
        elif isinstance(node, ast.Import):
            violations += [name.name for name in node.names if name.name.split(".")[0] in UNPICKLES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLES:
            violations.append(node.module or "")
    return violations


def test_agent_and_schemas_never_unpickle_or_evaluate() -> None:
    files = [
        path for folder in ("client_agent", "schemas", "studies") for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 100
    violations = {str(path.relative_to(ROOT)): _violations(path.read_text("utf-8")) for path in files}
    assert not {path: calls for path, calls in violations.items() if calls}


@pytest.mark.parametrize(
    "source",
    ["eval(x)", "import pickle", "torch.load(x)", "np.load(x, allow_pickle=True)", "from dill import y"],
)
def test_a_forbidden_call_is_detected(source: str) -> None:
    assert _violations(source)


def test_a_model_folders_own_code_is_not_executed(tmp_path: Path) -> None:
    folder, trace = tmp_path / "model", tmp_path / "executed"
    shutil.copytree(ROOT / "examples/models/tiny-s", folder)
    (folder / "own_code.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Model: ...\n")
    for name, classes in (
        ("config.json", {"AutoConfig": "own_code.Model", "AutoModelForCausalLM": "own_code.Model"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["own_code.Model", "own_code.Model"]}),
    ):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | {"auto_map": classes}))
    load_base_model(str(folder), device=torch.device("cpu"))
    load_tokenizer(str(folder))
    assert not trace.exists()


def test_a_plan_cannot_contain_strategy_code() -> None:
    plan = {"name": "clinics", "strategy": {"name": "fedavg", "code": "print(1)"}}
    with pytest.raises(ValueError, match="code"):
        FederationPlan.model_validate(plan)
    for name in ("os", "../fedavg", "client_agent.daemon"):
        with pytest.raises(Exception, match="this agent has no strategy"):
            load_strategy(name)
