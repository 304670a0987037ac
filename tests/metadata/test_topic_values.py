"""A stored topic is read as it was written, and an invalid one is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.keys import topic_key
from penstock.metadata.model import Partition, Topic
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.metadata.topic_values import decode_topic, encode_topic

IDS = st.binary(min_size=16, max_size=16).filter(lambda each: any(each[:15]))
EPOCHS = st.integers(0, 2**31 - 1)


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    replicas = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
    isr = tuple(each for each in replicas if draw(st.booleans()))
    eligible = tuple(each for each in replicas if each not in isr and draw(st.booleans()))
    leader = draw(st.sampled_from([-1, *isr]))
    members = len(isr) + len(eligible)
    adding = tuple(each for each in replicas if draw(st.booleans()))
    removing = tuple(each for each in replicas if each not in adding and draw(st.booleans()))
    return Partition(
        tuple(replicas),
        isr,
        eligible,
        leader,
        draw(EPOCHS),
        draw(EPOCHS),
        draw(st.integers(-1, 2**63)),
        draw(st.sampled_from([(), tuple(range(-1, members - 1))])),
        adding,
        removing,
    )


TOPICS = st.builds(
    Topic,
    st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True),
    IDS,
    st.lists(partitions(), min_size=1, max_size=4).map(tuple),
    st.dictionaries(st.text(), st.text(), max_size=3),
    synced_from=EPOCHS,
)


@settings(max_examples=60, deadline=None)
@given(TOPICS)
def test_a_topic_is_read_as_it_was_written(topic: Topic) -> None:
    """Ids, overrides and the state of every partition."""
    read = decode_topic(topic_key(topic.name), encode_topic(topic))
    assert (read.name, read.topic_id, read.partitions) == (
        topic.name,
        topic.topic_id,
        topic.partitions,
    )
    assert dict(read.configs) == topic.configs


def topic_fields(**partition: Any) -> dict[str, Any]:
    fields = {
        "replicas": [1, 2, 3],
        "isr": [1, 2],
        "leader": 1,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "leader_broker_epoch": 5,
        **partition,
    }
    return {"v": 1, "id": "AQEBAQEBAQEBAQEBAQEBAQ", "configs": {}, "partitions": [fields]}


def test_the_format_of_a_topic_is_fixed() -> None:
    """Future versions must read stores written today: this text may change only with the
    version."""
    topic = Topic("t", b"\x01" * 16, (Partition((1, 2), (1,), (2,), 1, 3, 4, 5),), {"a.b": "c"})
    assert encode_topic(topic) == (
        b'{"v":1,"id":"AQEBAQEBAQEBAQEBAQEBAQ","configs":{"a.b":"c"},"partitions":[{"replicas":'
        b'[1,2],"isr":[1],"leader":1,"leader_epoch":3,"partition_epoch":4,"leader_broker_epoch":5,'
        b'"eligible_leaders":[2]}]}'
    )
    moving = Partition((1, 2), (1,), (), 1, 3, 4, 5, (7,), (2,), (1,))
    assert encode_topic(Topic("t", b"\x01" * 16, (moving,), {})) == (
        b'{"v":1,"id":"AQEBAQEBAQEBAQEBAQEBAQ","configs":{},"partitions":[{"replicas":[1,2],'
        b'"isr":[1],"leader":1,"leader_epoch":3,"partition_epoch":4,"leader_broker_epoch":5,'
        b'"member_epochs":[7],"adding_replicas":[2],"removing_replicas":[1]}]}'
    )


@pytest.mark.parametrize(
    ("partition", "problem"),
    [
        ({"replicas": []}, "replicas"),
        ({"replicas": [1, 1, 2]}, "instead of broker ids"),
        ({"replicas": [1, -2]}, "instead of broker ids"),
        ({"replicas": [1, True]}, "instead of broker ids"),
        ({"replicas": "123"}, "instead of broker ids"),
        ({"isr": [1, 4]}, "ISR"),
        ({"eligible_leaders": [2]}, "ELR"),
        ({"leader": 3}, "leader"),
        ({"member_epochs": [1]}, "member epochs"),
        ({"member_epochs": [1, -2]}, "member epochs"),
        ({"member_epochs": [1, None]}, "member epochs"),
        ({"member_epochs": 1}, "member epochs"),
        ({"adding_replicas": [4]}, "adding"),
        ({"removing_replicas": [4]}, "removing"),
        ({"adding_replicas": [1], "removing_replicas": [1]}, "adding"),
        ({"leader": None}, "leader"),
        ({"leader": 1.0}, "not a number"),
        ({"leader_epoch": -1}, "leader_epoch"),
        ({"partition_epoch": "0"}, "partition_epoch"),
        ({"leader_broker_epoch": None}, "not a number"),
        ({"colour": "red"}, "fields"),
    ],
)
def test_an_invalid_partition_is_refused(partition: dict[str, Any], problem: str) -> None:
    """The error contains the key, what is wrong, and what to do."""
    fields = topic_fields(**partition)
    with pytest.raises(MetadataInvalid, match=problem) as caught:
        decode_topic("/penstock/topics/t", json.dumps(fields).encode())
    assert caught.value.key == "/penstock/topics/t"
    assert "restore" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "version"),
        (b'{"v":2,"id":"","configs":{},"partitions":[]}', "version 2"),
        (b'{"v":1,"id":"x","configs":{}}', "fields"),
        (b'{"v":1,"id":"x","configs":{},"partitions":[],"more":1}', "fields"),
        (b'{"v":1,"id":"x","configs":{},"partitions":[]}', "not an id"),
        (b'{"v":1,"id":7,"configs":{},"partitions":[]}', "not an id"),
        (b'{"v":1,"id":"AAAAAAAAAAAAAAAAAAAAAA","configs":{},"partitions":[]}', "reserved"),
        (b'{"v":1,"id":"AQEBAQEBAQEBAQEBAQEBAQ","configs":{},"partitions":[]}', "at least one"),
        (b'{"v":1,"id":"AQEBAQEBAQEBAQEBAQEBAQ","configs":{},"partitions":[1]}', "fields"),
        (json.dumps({**topic_fields(), "synced_from": -2}).encode(), "synced_from"),
        (json.dumps({**topic_fields(), "synced_from": "1"}).encode(), "synced_from"),
    ],
)
def test_a_value_that_cannot_be_decoded_is_refused(value: bytes, problem: str) -> None:
    """Whatever the bytes are, the only error is `MetadataInvalid`."""
    with pytest.raises(MetadataInvalid, match=problem):
        decode_topic("/penstock/topics/t", value)


def test_the_revision_of_a_durability_change_is_that_of_its_commit() -> None:
    """The writer does not know the revision yet. Later values contain it, and earlier versions
    wrote none."""
    topic = decode_topic("/penstock/topics/t", json.dumps(topic_fields()).encode(), 7)
    assert topic.synced_from == 0
    switched = encode_topic(replace(topic, synced_from=-1))
    read = decode_topic("/penstock/topics/t", switched, 8)
    assert read == replace(topic, synced_from=8)
    assert decode_topic("/penstock/topics/t", encode_topic(read), 9) == read
