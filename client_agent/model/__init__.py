"""Base models: architectures, loading, quantisation, tokens, examples and generation."""
