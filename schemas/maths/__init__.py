"""Arithmetic that both sides compute and must agree on."""
