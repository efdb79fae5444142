"""Federated simulation on one machine: compare methods over the same silos, seeds and local steps.

Every simulated client enrols at a real coordinator over HTTP and runs `client_agent.rounds.steps`.
"""
