"""The faults of a run: what they are, and when they happen."""
