"""Deployed pipelines: kept by the cluster, run and restarted by workers."""
