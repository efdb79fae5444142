"""The agent of a silo: pulls rounds, trains locally, pushes updates. Never imports the coordinator."""

__version__ = "0.1.0"
