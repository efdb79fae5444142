"""The shared contract of coordinator and agent: messages, wire format, identity and maths. NumPy at most."""

PROTOCOL_VERSION = 1
