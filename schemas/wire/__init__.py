"""Bytes: what an adapter looks like on the wire. `envelope.pack` and `envelope.unpack` are the doors."""
