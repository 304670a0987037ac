"""The coordinators of groups and transactions: shells around the pure shards."""
