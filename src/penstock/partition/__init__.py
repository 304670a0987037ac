"""The logic of one partition: replication, producers, leader epochs, retention,
compaction. Pure."""
