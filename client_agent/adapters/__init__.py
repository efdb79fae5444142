"""Adapters around a frozen base model, and their export."""
