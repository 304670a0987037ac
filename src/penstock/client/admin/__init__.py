"""Administration: topics, configs, groups, offsets, reassignments and transactions."""
