"""Builders of all tests: coordinator, federations, members, rounds, signed requests, training, waiting."""
