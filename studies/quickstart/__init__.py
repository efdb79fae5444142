"""`tessera quickstart`: a first federation of two silos on a tiny model that comes with the package."""
