"""Updates: what clients push, checked and kept."""
