"""The group coordinator, without I/O: requests and time in, effects out.

`shard.GroupShard` is the entry point: one per partition of `__consumer_offsets`. For groups of the
classic protocol, `group` defines a group and its state transitions, `rebalance`, `joining` and
`membership` handle what members do. Groups of the new protocol (KIP-848) have the package
`consumer` and the modules `consumer_*`; start at `consumer_heartbeats`. `offsets` and `admin` are
for both. `shard_state` is what these modules share, `image` the state in the log, `formats` its
encoding.
"""
