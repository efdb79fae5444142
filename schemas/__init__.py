"""The shared contract of coordinator and agent: messages, wire format, identity and maths. NumPy at most."""

PROTOCOL_VERSION = 2
"""2: scores are named numbers; briefs have `scores` and `total_rounds`, and `learning_rate` may be `auto`."""
