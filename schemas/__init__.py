"""What both sides must agree on to the bit: messages, bytes on the wire, shared algebra. NumPy at most."""

PROTOCOL_VERSION = 1
