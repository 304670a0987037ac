"""The simulated clients of a run."""
