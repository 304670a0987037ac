"""The group coordinator, classic protocol, without I/O: requests and time in, effects out.

`shard.GroupShard` is the door: one per partition of `__consumer_offsets`. Behind it, `group` holds
what a group is and which states follow which, `rebalance`, `joining` and `membership` what its
members do to it, `offsets` and `admin` the rest; `image` is what the log says, `formats` how.
"""
