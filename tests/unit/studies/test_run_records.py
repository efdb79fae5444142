"""Records of a run: relevance and truncated texts; loading of silos with the study's bits and dtype."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch

from client_agent.errors import CoordinatorRefused
from client_agent.model.examples import Example
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo
from client_agent.transport.admin_client import Operator
from studies.clients import SharedModels, build_silos
from studies.methods import methods_of
from studies.partition import draw_examples
from studies.results import cells_of
from studies.run_records import count_texts, read_relevance
from tests.scene.studies import silo_table, study

FEDERATION = "/v1/federations/f"
IN_BITS = (silo_table("aster", quantization="nf4"), silo_table("birch"))


class Pages:
    """An operator of a federation of two clients, whose second round has no relevance."""

    def __init__(self, status: int = 404) -> None:
        self.status = status

    def every(self, path: str) -> list[dict[str, str]]:
        assert path == f"{FEDERATION}/clients"
        return [{"client_id": "c1", "name": "birch"}, {"client_id": "c2", "name": "aster"}]

    def get(self, path: str) -> dict[str, object]:
        if path == f"{FEDERATION}/rounds/2/relevance":
            raise CoordinatorRefused(self.status, "", "", path)
        return {"clients": ["c1", "c2"], "rows": ["c1", "c2"], "relevance": [[0.25, 0.75], [1, 0]]}


def test_recorded_relevance_has_the_order_of_the_study() -> None:
    first, third = read_relevance(cast("Operator", Pages()), FEDERATION, 3, ["aster", "birch"])
    assert (first.round, third.round) == (1, 3)
    assert first.rows == first.clients == ["aster", "birch"]
    assert first.weights == [[0, 1], [0.75, 0.25]]


def test_an_error_while_relevance_is_read_is_raised() -> None:
    with pytest.raises(CoordinatorRefused):
        read_relevance(cast("Operator", Pages(500)), FEDERATION, 3, ["aster", "birch"])


def test_texts_longer_than_the_plan_allows_are_counted(tmp_path: Path) -> None:
    base = SharedModels().at(study(tmp_path).silo[0].model)
    examples = tuple(Example(f"COPY {'a' * length}=", "b") for length in (1, 4, 9))
    silo = Silo(base, SiloData(examples[:2], (), examples[2:]), None)
    counts = [count_texts(silo, length) for length in (9, 10, 64)]
    assert [(count.examples, count.cut) for count in counts] == [(3, 3), (3, 2), (3, 0)]


def test_a_quantised_silo_has_a_dense_pivot(tmp_path: Path) -> None:
    read = study(tmp_path, *IN_BITS)
    silos = build_silos(read, draw_examples(read, 0), SharedModels())
    aster, birch = silos["aster"], silos["birch"]
    assert getattr(aster.base.model, "is_loaded_in_4bit", False)
    assert aster.base.slug == birch.base.slug
    assert aster.model_named(birch.base.slug) is birch.base  # gradients do not survive few bits


@pytest.mark.parametrize(
    ("dtype", "loaded", "pivot"),
    [("bfloat16", torch.bfloat16, torch.bfloat16), ("float16", torch.float16, torch.bfloat16)],
)
def test_silos_load_their_dtype_and_a_suitable_pivot(
    tmp_path: Path, dtype: str, loaded: torch.dtype, pivot: torch.dtype
) -> None:
    read = study(tmp_path, silo_table("aster", model="L", dtype=dtype), silo_table("birch"))
    silos = build_silos(read, draw_examples(read, 0), SharedModels())
    aster, birch = silos["aster"], silos["birch"].base
    assert [aster.base.model.dtype, birch.model.dtype] == [loaded, torch.float32]
    assert aster.model_named(birch.slug).model.dtype == pivot


@pytest.mark.parametrize("option", [{"quantization": "nf4"}, {"dtype": "bfloat16"}])
def test_the_digest_covers_dtype_and_quantization(tmp_path: Path, option: dict[str, str]) -> None:
    digests = [
        next(cells_of(read, methods_of(read, ["local"]), [0])).digest
        for read in (
            study(tmp_path / "dense", silo_table("aster"), silo_table("birch")),
            study(tmp_path / "option", silo_table("aster", **option), silo_table("birch")),
        )
    ]
    assert digests[0] != digests[1]
