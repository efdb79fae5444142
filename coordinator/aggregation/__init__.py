"""Aggregation: from the updates of a round to the weights of the next."""
