"""What a user of pipelines is told, in one line that says what to do."""

from __future__ import annotations


class PipelineError(Exception):
    """A pipeline cannot be made, found or run."""
