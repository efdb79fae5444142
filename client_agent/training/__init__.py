"""Examples, the training loop, and scores."""
