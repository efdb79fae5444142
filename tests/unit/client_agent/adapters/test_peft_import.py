"""Import of peft without bitsandbytes, which takes seconds to import and which few base models need."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from transformers.utils.import_utils import is_bitsandbytes_available

from client_agent.adapters.peft_folder import light_peft


def test_bitsandbytes_is_hidden_from_peft_and_found_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bitsandbytes", raising=False)
    is_installed = importlib.util.find_spec("bitsandbytes") is not None
    with light_peft():
        from peft import import_utils

        import_utils.is_bnb_available.cache_clear()
        assert not import_utils.is_bnb_available()
        with pytest.raises(ModuleNotFoundError):
            import bitsandbytes  # noqa: F401
    assert "bitsandbytes" not in sys.modules
    assert import_utils.is_bnb_available() == is_bitsandbytes_available() == is_installed


def test_bitsandbytes_in_use_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    in_use = type(sys)("bitsandbytes")
    monkeypatch.setitem(sys.modules, "bitsandbytes", in_use)
    with light_peft():
        assert sys.modules["bitsandbytes"] is in_use
