"""Topic configs for queues, that is for share groups. Kafka has none of them; all are off at first.

`docs/QUEUES.md` explains what they do.
"""

from __future__ import annotations

from typing import Final

from penstock.metadata.config_types import ConfigType, Definition, at_least, between, one_of

PRIORITY_LEVELS_MAX: Final = 8
DEDUP_WINDOW_MAX_MS: Final = 7 * 24 * 3_600_000

REFUSE: Final = "refuse"
DROP_OLDEST: Final = "drop-oldest"

QUEUE_CONFIGS: Final = (
    Definition(
        "penstock.dedup.window.ms",
        ConfigType.LONG,
        0,
        "How long share groups recognize duplicates: a record is not delivered if an earlier one "
        "with the same header penstock-dedup-id, or without it the same key, has a timestamp that "
        "differs by less than this. 0 means that duplicates are delivered.",
        between(0, DEDUP_WINDOW_MAX_MS),
    ),
    Definition(
        "penstock.priority.levels",
        ConfigType.INT,
        0,
        "How many levels of priority share groups see in the topic: partition p has level p modulo "
        "this number, and a higher level is served first. 0 means that all partitions are equal.",
        between(2, PRIORITY_LEVELS_MAX, besides=0),
    ),
    Definition(
        "penstock.queue.length.max",
        ConfigType.LONG,
        0,
        "The maximum length of a queue: the number of records of a partition from the first one "
        "that a share group has not finished to the end of the log, finished ones in between "
        "included; 0: no limit. penstock.queue.length.policy says what happens at the limit.",
        at_least(0),
    ),
    Definition(
        "penstock.queue.length.policy",
        ConfigType.STRING,
        REFUSE,
        "What happens when a queue is longer than penstock.queue.length.max: refuse refuses "
        "batches of producers, drop-oldest gives up the oldest records that no member has.",
        one_of(REFUSE, DROP_OLDEST),
    ),
    Definition(
        "penstock.timed.records",
        ConfigType.BOOLEAN,
        False,
        "Whether share groups read the headers penstock-deliver-at and penstock-expires-at: they "
        "deliver a record no earlier than its deliver-at time, and only before its expires-at "
        "time.",
    ),
)
