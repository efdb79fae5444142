"""Strategies as both sides know them: their names, their options, and the facts that follow from these."""
