"""Causal language models of transformers are trained and exported, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import __version__ as transformers_version
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.unit.client_agent.model.architecture_table import outcome, stored
from tests.unit.client_agent.model.tiny_configs import MODEL_TYPES

FAST = ("olmo2", "bloom", "qwen2_moe", "qwen3_moe", "gpt_oss", "bart")  # dense, fused, experts, refused


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in MODEL_TYPES],
)
@pytest.mark.filterwarnings("ignore")  # of models that few people use
def test_architecture_outcome_is_as_in_the_table(model_type: str, tmp_path: Path) -> None:
    row = stored()["architectures"][model_type]
    assert outcome(model_type, tmp_path) == {key: value for key, value in row.items() if key != "class"}


def test_table_is_of_the_installed_transformers() -> None:
    table = stored()
    assert table["transformers"] == transformers_version, (
        "run tests.unit.client_agent.model.architecture_table"
    )
    assert table["architectures"].keys() == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()
