"""The error for a bug in a coordinator."""

from __future__ import annotations


class InvariantViolated(AssertionError):
    """The coordinator's state is inconsistent: stop the shard and load it from the log again."""
