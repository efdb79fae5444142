"""Federated methods, one file each: how the agent uses the weights that it is served."""
