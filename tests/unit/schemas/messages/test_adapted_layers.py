"""The values of `adapter.layers` in a plan, and the error of a wrong one."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from schemas.messages.federations import AdapterPlan


@pytest.mark.parametrize("layers", [0, -1, 1025, "6", 2.5, True, {"last": 3}, [], [-1], [1024], ["0"]])
def test_a_wrong_value_of_layers_has_one_error(layers: object) -> None:
    plan = {"kind": "lora", "layers": layers}
    for validate in (
        lambda: AdapterPlan.model_validate(plan),
        lambda: AdapterPlan.model_validate_json(json.dumps(plan)),
    ):
        with pytest.raises(ValidationError) as refused:
            validate()
        (fault,) = refused.value.errors()
        assert fault["loc"] == ("layers",)
        assert fault["msg"] == "must be a number from 1 to 1024, or a list of layers from 0 to 1023"


@pytest.mark.parametrize(("layers", "expected"), [(6, 6), ([2, 0], (0, 2)), (None, None)])
@pytest.mark.parametrize("strict", [True, False])
def test_layers_are_a_number_or_a_list(layers: object, expected: object, strict: bool) -> None:
    plan = {"kind": "lora", "layers": layers}
    assert AdapterPlan.model_validate(plan).layers == expected
    assert AdapterPlan.model_validate_json(json.dumps(plan), strict=strict).layers == expected
