"""Metrics of a worker and its pipelines, for Prometheus."""
