"""What the coordinators of groups, transactions and share states have in common, without I/O.

A shard is the state of one partition of an internal topic. Every call of a shard is synchronous and
returns a list of effects (`effects`): replies to send, records to append, timers to set. A change
takes effect in memory only once its records are committed. Until then its append is in flight
(`in_flight`), with an object that says what to do when the outcome is known. `batches` splits many
records into batches. `shard` lists the calls that a shell makes, and its duties.
"""
