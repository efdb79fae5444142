"""The pages of the reference that are generated from code, and the rules of the documentation site."""
