"""Membership in a consumer group: assignment of partitions, and committed offsets."""
