"""Federations: their plans, their members, what happens in them."""
