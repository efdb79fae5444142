"""A real llama.cpp through ctypes: logits and greedy answers of a model with an adapter or without one.

TESSERA_LLAMA_CPP names the folder of its shared libraries. The npm package @node-llama-cpp/linux-x64 3.22.1
has them in bins/linux-x64: `npm pack @node-llama-cpp/linux-x64@3.22.1`, unpacked. The structures below are
those of its release, v0.5.0.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RELEASE = "v0.5.0"
CONTEXT = 512
_FLOAT32, _FLOAT16, _BATCH = 0, 1, 2048
_ints = [(name, ctypes.c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope", "pooling")]


class _ContextParams(ctypes.Structure):
    _fields_ = (
        *(
            (n, ctypes.c_uint32)
            for n in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "out", "out_seq")
        ),
        *_ints,
        ("attention_type", ctypes.c_int32),
        ("flash_attn_type", ctypes.c_int32),
        ("rope_and_yarn", ctypes.c_float * 6),
        ("yarn_orig_ctx", ctypes.c_uint32),
        ("defrag_thold", ctypes.c_float),
        ("cb_eval", ctypes.c_void_p),
        ("cb_eval_user_data", ctypes.c_void_p),
        ("type_k", ctypes.c_int32),
        ("type_v", ctypes.c_int32),
        ("rest", ctypes.c_uint64 * 16),
    )


class _ModelParams(ctypes.Structure):
    _fields_ = (("everything", ctypes.c_uint64 * 32),)


class _Batch(ctypes.Structure):
    _fields_ = (("n_tokens", ctypes.c_int32), ("pointers", ctypes.c_void_p * 6))


@cache
def library() -> ctypes.CDLL:
    """Load the libraries; the test is skipped where there are none of this release."""
    folder = os.environ.get("TESSERA_LLAMA_CPP")
    if folder is None:
        pytest.skip("TESSERA_LLAMA_CPP is not set")
    release = json.loads(Path(folder, "_nlcBuildMetadata.json").read_text())["buildOptions"]["llamaCpp"][
        "release"
    ]
    assert release == RELEASE
    ggml = ctypes.CDLL(str(Path(folder, f"libggml.{RELEASE}.so")), ctypes.RTLD_GLOBAL)
    ggml.ggml_backend_load_all_from_path(folder.encode())
    lib = ctypes.CDLL(str(Path(folder, f"libllama.{RELEASE}.so")))
    pointer = ctypes.c_void_p
    for name, result, arguments in (
        ("llama_model_default_params", _ModelParams, []),
        ("llama_context_default_params", _ContextParams, []),
        ("llama_model_load_from_file", pointer, [ctypes.c_char_p, _ModelParams]),
        ("llama_init_from_model", pointer, [pointer, _ContextParams]),
        ("llama_adapter_lora_init", pointer, [pointer, ctypes.c_char_p]),
        ("llama_set_adapters_lora", ctypes.c_int32, [pointer, pointer, ctypes.c_size_t, pointer]),
        ("llama_batch_get_one", _Batch, [pointer, ctypes.c_int32]),
        ("llama_decode", ctypes.c_int32, [pointer, _Batch]),
        ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, ctypes.c_int32]),
        ("llama_model_get_vocab", pointer, [pointer]),
        ("llama_vocab_n_tokens", ctypes.c_int32, [pointer]),
        ("llama_free", None, [pointer]),
        ("llama_model_free", None, [pointer]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_backend_init()
    return lib


class LlamaCpp:
    """A model in a GGUF file, with an adapter or without one."""

    def __init__(self, model: int, adapter: int | None) -> None:
        self._lib, self._model, self._adapter = library(), model, adapter
        self._vocabulary = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(model))

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits after each token: (t, V) float32."""
        with self._context() as context:
            return np.stack([self._step(context, token) for token in ids])

    def greedy(self, ids: Sequence[int], count: int, ends: set[int]) -> list[int]:
        """Continue tokens greedily, up to an end token."""
        answer: list[int] = []
        with self._context() as context:
            last = [self._step(context, token) for token in ids][-1]
            while len(answer) < count and int(last.argmax()) not in ends:
                answer.append(int(last.argmax()))
                last = self._step(context, answer[-1])
        return answer

    @contextmanager
    def _context(self) -> Iterator[int]:
        """Open a context, with float32 keys and values as transformers has them."""
        params = self._lib.llama_context_default_params()
        assert (params.n_batch, params.type_k, params.type_v) == (_BATCH, _FLOAT16, _FLOAT16)
        params.n_ctx, params.n_threads, params.n_threads_batch = CONTEXT, 1, 1
        params.type_k = params.type_v = _FLOAT32
        params.flash_attn_type = 0
        context = self._lib.llama_init_from_model(self._model, params)
        assert context
        if self._adapter is not None:
            adapters, scales = (ctypes.c_void_p * 1)(self._adapter), (ctypes.c_float * 1)(1.0)
            assert self._lib.llama_set_adapters_lora(context, adapters, 1, scales) == 0
        try:
            yield context
        finally:
            self._lib.llama_free(context)

    def _step(self, context: int, token: int) -> np.ndarray:
        tokens = (ctypes.c_int32 * 1)(token)
        assert self._lib.llama_decode(context, self._lib.llama_batch_get_one(tokens, 1)) == 0
        row: Any = self._lib.llama_get_logits_ith(context, -1)
        return np.ctypeslib.as_array(row, (self._vocabulary,)).copy()


@contextmanager
def llama_cpp(model: Path, adapter: Path | None = None) -> Iterator[LlamaCpp]:
    """Load a model and an adapter."""
    lib = library()
    loaded = lib.llama_model_load_from_file(str(model).encode(), lib.llama_model_default_params())
    assert loaded, f"llama.cpp does not load {model}"
    lora = None
    if adapter is not None:
        lora = lib.llama_adapter_lora_init(loaded, str(adapter).encode())
        assert lora, f"llama.cpp does not load {adapter}"
    try:
        yield LlamaCpp(loaded, lora)
    finally:
        lib.llama_model_free(loaded)
