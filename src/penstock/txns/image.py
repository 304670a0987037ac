"""The state of a shard that is in the log, and survives a restart.

Only `replay` changes it, with committed records, in log order. So the broker that wrote a record
and the one that reads it after a failover get the same image.
"""

from __future__ import annotations

from penstock.txns.formats import read_record
from penstock.txns.transaction import Transaction


class ShardImage:
    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        entry = read_record(key, value)
        if entry is None:
            return
        if entry.transaction is None:
            self.transactions.pop(entry.transactional_id, None)
        else:
            self.transactions[entry.transactional_id] = entry.transaction

    def get(self, transactional_id: str) -> Transaction | None:
        return self.transactions.get(transactional_id)
