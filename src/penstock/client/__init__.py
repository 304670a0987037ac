"""Talking to a cluster: connections, the cluster's view, administration, records in and out."""
