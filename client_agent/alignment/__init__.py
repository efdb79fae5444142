"""Alignment packs: fit, select, exchange and test them."""
