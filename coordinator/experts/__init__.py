"""The bank of shared experts: which of them are born, pruned and merged, and what their functions are."""
