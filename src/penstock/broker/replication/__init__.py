"""Replication: followers fetch from leaders, and leaders propose changes of their ISR."""
