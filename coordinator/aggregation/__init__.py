"""Aggregation of a round: from stored updates to published weights."""
