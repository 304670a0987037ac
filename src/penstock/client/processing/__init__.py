"""Doing something with records: runs, loops named by their promise, offsets kept elsewhere."""
