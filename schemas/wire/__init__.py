"""The wire format of tensors; entry points are `envelope.pack` and `envelope.unpack`."""
