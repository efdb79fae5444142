"""The documentation; its only code is `docs.generate`."""
