"""The partitions that this broker hosts: appends, reads, requests that wait, upkeep of the logs."""
