"""Base models, the adapters around them, and what makes adapters comparable."""
