"""Compares how far two generations of a pipeline have read, by the checkpoints in local folders.

A checkpoint has a file for each batch in `offsets`, with a line of JSON for each source, and a file
for each batch that was completed in `commits`. The offsets of topics have the form
`{"topic": {"0": 17}}`; those of other sources are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.spark.deployments.checkpoint_folders import CHECKPOINTS
from penstock.spark.pipelines.events import topic_offsets
from penstock.spark.pipelines.table_writers import latest_batch
from penstock.spark.stream_position import position_from_spark


class Read(NamedTuple):
    """How far a partition is read."""

    offset: int
    """The offset that is read next."""
    topic_id: str = ""


Offsets = Mapping[str, Mapping[tuple[str, str], Read]]
"""Flow -> topic and partition -> how far it is read."""
_LINES_BEFORE: Final = 2
"""A version, and the settings of the batch."""


def read_offsets(storage: Path) -> dict[str, dict[tuple[str, str], Read]]:
    """Returns the offsets of all flows, by the path of their checkpoint."""
    found: dict[str, dict[tuple[str, str], Read]] = {}
    root = storage / CHECKPOINTS
    for metadata in sorted(root.rglob("metadata")):
        checkpoint = metadata.parent
        if not checkpoint.name.isdecimal() or not (checkpoint / "offsets").is_dir():
            continue
        flow = checkpoint.parent
        number = latest_batch(each.name for each in flow.iterdir())
        if checkpoint.name == str(number):
            found[str(flow.relative_to(root))] = _committed(checkpoint)
    return found


def behind(old: Offsets, new: Offsets) -> dict[str, int]:
    """Returns how many records of topics each flow has read less than before. Flows and topics that
    only one of the two has are not compared, nor is a topic that was created again."""
    found = {}
    for flow, before in old.items():
        after = new.get(flow, {})
        missing = sum(
            max(read.offset - after[place].offset, 0)
            for place, read in before.items()
            if place in after and _is_same(read, after[place])
        )
        if missing:
            found[flow] = missing
    return found


def _is_same(one: Read, other: Read) -> bool:
    """Whether both are of the same topic, as far as the checkpoints say."""
    return not (one.topic_id and other.topic_id) or one.topic_id == other.topic_id


def _committed(checkpoint: Path) -> dict[tuple[str, str], Read]:
    """Returns the offsets after the last batch that was completed."""
    commits = checkpoint / "commits"
    number = latest_batch(each.name for each in commits.iterdir()) if commits.is_dir() else -1
    batch = checkpoint / "offsets" / str(number)
    if number < 0 or not batch.is_file():
        return {}
    found: dict[tuple[str, str], Read] = {}
    for line in batch.read_text("utf-8").splitlines()[_LINES_BEFORE:]:
        try:
            given = json.loads(line)
        except ValueError:
            continue
        offsets = topic_offsets(given)
        ids = position_from_spark(given).topics if offsets else {}
        for topic, partitions in offsets.items():
            for partition, offset in partitions.items():
                place = topic, partition
                read = Read(offset, ids.get(topic, ""))
                found[place] = min(found.get(place, read), read)
    return found
