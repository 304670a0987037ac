"""Decides and applies changes of the cluster: controller, cluster view, membership, commits."""
