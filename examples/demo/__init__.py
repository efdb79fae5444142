"""The demo: four helpdesks on a real language model, alone and as a federation."""
