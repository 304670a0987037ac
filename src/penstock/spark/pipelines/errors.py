"""Errors for users of pipelines: one line that says what to do."""

from __future__ import annotations


class PipelineError(Exception):
    """A pipeline cannot be created, found or run."""
