"""Logs in an object store: segment objects, manifests, the collector, and adapters for stores.

`docs/TIERED.md` explains the design, and has the layouts and the tables of failures.
"""
