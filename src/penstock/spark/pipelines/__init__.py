"""Spark Declarative Pipelines on topics: a project to begin with, and a runner with a live view."""
