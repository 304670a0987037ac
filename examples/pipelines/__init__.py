"""Pipelines on Spark, each a script by itself: see `python -m examples.pipelines.NAME --help`."""
