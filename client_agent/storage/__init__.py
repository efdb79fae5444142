"""The agent's folder on disk."""
