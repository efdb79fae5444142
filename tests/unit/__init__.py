"""Tests of one package each, in the folders of the packages."""
