"""Share groups on the leaders of partitions: the shell around `penstock.shares`.

`share_leader` has the share sessions of this broker and the partitions that share groups use.
`led_partition` runs the share partitions of one partition while this broker leads it, `log_reads`
reads their records, `start_offsets` decides where a group begins, and `parked_fetch` is a share
fetch that waits. `dead_letters` builds dead letters, and `letter_sender` appends them to their
topic. `length_limits` limits the length of queues. `occupancy` is for metrics.
"""
