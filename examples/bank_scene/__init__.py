"""The whole life of a bank of experts in one federation of real agents, with kills and a restart."""
