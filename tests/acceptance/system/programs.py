"""Programs of the operating system that Tessera meets: a browser, and the proxy before it in Compose."""

from __future__ import annotations

import shutil

import pytest


def program(name: str) -> str:
    """Find a program, or fail the test with the package to install.

    Who asks for these tests by their marker wants them run, not skipped.
    """
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"there is no {name}: on Debian `apt-get install {name}`, or leave out `-m system`")
    return path
