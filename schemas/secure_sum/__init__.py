"""Secure aggregation by pairwise masks (Bonawitz et al. 2017): the computations of both sides. Pure."""
