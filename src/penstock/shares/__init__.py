"""Share groups (KIP-932) without I/O: what a partition's leader decides for each group.

`share_partition` is the machine of one partition as one group sees it. It keeps `spans`, acquires
records (`acquisition`), checks `acknowledgements`, makes `decisions`, and tells its shell what to
store. `image` is what is stored, `formats` are the records of the state log, and `state_writer`
appends them for all groups of a partition. `partition_shares` connects the share partitions of a
partition with its state writer. `sessions` are what a broker remembers of each member. `assignor`
divides partitions among members. docs/QUEUES.md has the design.
"""
