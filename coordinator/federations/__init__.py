"""Federations: plans, members, events and claims."""
