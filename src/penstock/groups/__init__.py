"""The group coordinator for the classic protocol, without I/O: requests and time in, effects out.

`shard.GroupShard` is the entry point: one per partition of `__consumer_offsets`. `group` defines a
group and its state transitions. `rebalance`, `joining` and `membership` handle what members do;
`offsets` and `admin` handle the rest. `shard_state` is what these modules share, `image` the state
in the log, `formats` its encoding.
"""
