"""Delay topics: which records to copy next, and what must be durable before that. Pure.

`docs/QUEUES.md` explains delay topics, and has a table of failures.
"""
