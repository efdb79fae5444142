"""Builders that all tests use: a coordinator, its federations and members, rounds, requests, training, waiting."""
