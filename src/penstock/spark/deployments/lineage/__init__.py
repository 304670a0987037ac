"""OpenLineage events of deployed pipelines."""
