"""The transaction coordinator without I/O: requests and time in, effects out.

`shard.TransactionShard` is the entry point: one per partition of `__transaction_state`.
`transaction` defines a transactional id and its state transitions. `initializing`, `adding`,
`ending`, `multi_commit` and `markers` change it; `admin` lists, describes and expires it.
`shard_state` is what these modules share, `image` the state in the log, `formats` its encoding.
"""
