"""Checks of a run: invariants after every step, and rules about the history at the end."""
