"""The crash harness: one log on the simulated disk, checked against a model."""
