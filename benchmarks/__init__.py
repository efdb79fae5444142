"""Measurements: what Tessera's work costs against the least that any program would need, in one run."""
