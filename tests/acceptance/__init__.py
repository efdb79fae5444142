"""Scenarios across packages, deployment, documents, examples and contracts."""
