"""Import and call peft without bitsandbytes, unless the base model is quantised with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_KERNELS = "bitsandbytes"


@contextmanager
def light_peft() -> Iterator[None]:
    """Hide bitsandbytes, if nothing has imported it yet, while peft is imported and called.

    peft imports it wherever it is installed, and it then prepares kernels for seconds. Only layers of a
    quantised base model need them, and loading such a model has imported it before.
    """
    if _KERNELS in sys.modules:
        yield
        return
    sys.modules[_KERNELS] = None  # type: ignore[assignment]  # importing it raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules[_KERNELS]
        _forget_absence()


def _forget_absence() -> None:
    """Clear what peft has cached of the absence: a quantised model may be loaded later in this process."""
    from peft import import_utils

    import_utils.is_bnb_available.cache_clear()
    import_utils.is_bnb_4bit_available.cache_clear()
