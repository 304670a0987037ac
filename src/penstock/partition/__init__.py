"""What one partition decides: producers, leader epochs, retention, compaction. Pure."""
