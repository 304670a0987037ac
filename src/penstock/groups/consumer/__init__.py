"""Consumer groups of the new protocol (KIP-848): what they store, and how partitions are assigned.

`records` defines what is in the log, `stored_group` the state that it adds up to. `assignors`
computes who should own which partition (the target assignment), and `reconciliation` leads each
member there: it revokes a partition from one member before it assigns it to another. The requests
are handled by the modules of the package above: `consumer_heartbeats`, `consumer_admin` and others.
"""
