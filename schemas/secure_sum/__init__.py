"""Secure aggregation by pairwise masks (Bonawitz et al. 2017): what both sides compute alike. Pure."""
