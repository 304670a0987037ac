"""The error of a test that cannot run its pipeline."""

from __future__ import annotations


class PipelineTestFailed(AssertionError):
    """The pipeline of a test could not be run, or the test asks for something that is not there."""
