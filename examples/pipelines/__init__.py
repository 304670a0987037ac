"""Spark pipelines, each a script: see `python -m examples.pipelines.NAME --help`."""
