"""Connections to other brokers of the cluster."""
