"""Measurements: the cost of Tessera's work beside the least cost of any program, measured in the same run."""
