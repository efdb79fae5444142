"""The bank of shared experts: births, pruned and merged experts, and their functions."""
