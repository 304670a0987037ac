"""Share groups (KIP-932) without I/O: what a partition's leader decides for each group.

`share_partition` is the machine of one partition as one group sees it. It keeps `spans`, acquires
records (`acquisition`), checks `acknowledgements`, makes `decisions`, and tells its shell what to
store. `partition_shares` has the share partitions of all groups of a partition. `image` is what is
stored, and `loading` compares it with the log of a new leader. `sessions` are what a broker
remembers of each member. `assignor` divides partitions among members.

The share coordinator stores images. `state_port` is what leaders and group coordinators ask of it,
`state_requests` are its requests and who may make them, `formats` the records of its log,
`stored_states` the result of these records, and `state_shard` the coordinator of one partition of
its topic. docs/QUEUES.md has the design.
"""
