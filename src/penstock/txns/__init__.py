"""The transaction coordinator without I/O: requests and time in, effects out.

`shard.TransactionShard` is the door: one per partition of `__transaction_state`. Behind it,
`transaction` holds what a transactional id is and which states follow which; `initializing`,
`adding`, `ending`, `together` and `markers` what is done to it, `admin` how it is looked at and
forgotten; `image` is what the log says, `formats` how.
"""
