"""Tests of Tessera."""

import sys

# Programs like the fault simulation run without pytest. Under it, asserts of the scene show their values.
if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite("tests.scene")
