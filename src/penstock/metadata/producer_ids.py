"""Allocates producer ids to brokers, in blocks.

An id is never allocated twice. A block belongs to a broker once the commit of the new counter has
succeeded. The commit also contains the broker's own mark, so that a broker that did not learn the
outcome cannot take another broker's block for its own. Ids that a broker has not used when it stops
are lost; there are 2**63.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.metadata.cluster_values import encode_producer_ids
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import PRODUCER_IDS_KEY
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
    """Allocates the next block of ids. `taker_id` is the mark of the broker."""
    first = image.next_producer_id
    if first + count > _ID_MAX:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "All producer ids are used up: move the topics to a new cluster.",
        )
    value = encode_producer_ids(first + count, taker_id)
    change = Change(PRODUCER_IDS_KEY, value, image.revision_of(PRODUCER_IDS_KEY))
    return Decision((change,), ProducerIdBlock(first, count))
