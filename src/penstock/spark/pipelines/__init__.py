"""Spark Declarative Pipelines on topics: a project template, and a runner with a live view."""
