"""Producer ids, given out to brokers in blocks.

An id is never given out twice: a block is a broker's once the counter behind it is committed, with
the broker's own mark: one that did not hear the outcome must not take another's block for its own.
What a broker does not use before it stops is lost; there are 2**63.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.metadata.decisions import Change, Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import PRODUCER_IDS_KEY, encode_producer_ids
from penstock.wire.errors import ErrorCode, KafkaError

BLOCK_SIZE: Final = 1000
_ID_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    first: int
    count: int


def allocate_producer_ids(
    image: ClusterImage, taker_id: bytes, count: int = BLOCK_SIZE
) -> Decision[ProducerIdBlock]:
    first = image.next_producer_id
    if first + count > _ID_MAX:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "All producer ids have been given out: move the topics to a new cluster.",
        )
    value = encode_producer_ids(first + count, taker_id)
    change = Change(PRODUCER_IDS_KEY, value, image.revision_of(PRODUCER_IDS_KEY))
    return Decision((change,), ProducerIdBlock(first, count))
