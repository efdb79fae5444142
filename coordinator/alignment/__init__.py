"""Alignment: anchor texts, and the packs that make P and Q mean the same in every architecture."""
