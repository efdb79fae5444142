"""The coordinator's part in the secure sum: checks messages, closes phases, opens sums. Pure."""
