"""The names of all objects. `docs/TIERED.md` lists them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SEGMENTS: Final = "seg"
SUB_MANIFESTS: Final = "sub"
_MANIFESTS: Final = "man"
_BOUNDARIES: Final = "bnd"
CLAIM_BYTES: Final = 8
RANDOM_BYTES: Final = 8
_NUMBER: Final = re.compile(r"[0-9]{20}")
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")
_CLAIM_ID: Final = re.compile(r"[0-9a-f]{16}")
_INT32_MAX: Final = (1 << 31) - 1
_DATA_KEY: Final = re.compile(
    r"(seg|sub)/([0-9a-f]{32})/([0-9]{1,10})/([0-9]{20})-([0-9]{1,10})"
    r"-([0-9a-f]{16})-([0-9a-f]{16})"
)


class TopicIdPartition(NamedTuple):
    """A partition by the id of its topic, which is never used again for another topic."""

    topic_id: str
    """32 hex digits."""
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"

    def is_possible(self) -> bool:
        is_index = 0 <= self.partition <= _INT32_MAX
        return is_index and _TOPIC_ID.fullmatch(self.topic_id) is not None


class Claim(NamedTuple):
    """One leadership of a partition, as manifests know it."""

    epoch: int
    id: str
    """16 hex digits, drawn at random when the leader claims the partition."""

    def is_possible(self) -> bool:
        return 0 <= self.epoch <= _INT32_MAX and _CLAIM_ID.fullmatch(self.id) is not None


class DataKey(NamedTuple):
    """What the name of a segment object or a sub-manifest says."""

    kind: str
    owner: TopicIdPartition
    base_offset: int
    claim: Claim
    random: str

    def __str__(self) -> str:
        return (
            f"{self.kind}/{self.owner}/{self.base_offset:020d}-{self.claim.epoch}-"
            f"{self.claim.id}-{self.random}"
        )


def parse_data_key(key: str) -> DataKey | None:
    """Returns what the name says; None if it is not the name of such an object."""
    found = _DATA_KEY.fullmatch(key)
    if found is None:
        return None
    kind, topic_id, partition, base, epoch, claim, random = found.groups()
    owner = TopicIdPartition(topic_id, int(partition))
    return DataKey(kind, owner, int(base), Claim(int(epoch), claim), random)


def is_data_key(key: object, kind: str) -> bool:
    """Returns whether this is the name of an object of a kind: `SEGMENTS` or `SUB_MANIFESTS`."""
    return (
        isinstance(key, str) and key.startswith(f"{kind}/") and _DATA_KEY.fullmatch(key) is not None
    )


def data_prefix(kind: str, owner: TopicIdPartition) -> str:
    """Returns the folder of a partition's segment objects or sub-manifests."""
    return f"{kind}/{owner}/"


def manifest_key(chain: str, seq: int) -> str:
    return f"{_MANIFESTS}/{chain}/{seq:020d}"


def manifest_prefix(chain: str) -> str:
    return f"{_MANIFESTS}/{chain}/"


def boundary_key(chain: str, number: int) -> str:
    return f"{_BOUNDARIES}/{chain}/{number:020d}"


def sequence_number(key: str, prefix: str) -> int | None:
    """Returns the number at the end of a listed key; None if the name is not one of ours."""
    name = key.removeprefix(prefix)
    return int(name) if _NUMBER.fullmatch(name) else None
