"""Requests to the coordinator: signed, retried until a deadline, and their responses."""
