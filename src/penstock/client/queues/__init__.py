"""Queues: topics that are read by share groups, with jobs that are settled one by one."""
