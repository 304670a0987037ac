"""Messages of share groups, byte by byte. kafka-python does not know them."""

from __future__ import annotations

import pytest

from penstock.broker.dispatch import Dispatcher
from penstock.wire.api import ApiKey
from penstock.wire.codec import decode_at, encode
from penstock.wire.messages.base import Message
from penstock.wire.messages.shares import (
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
)

TOPIC_ID = bytes(range(16))


def test_share_groups_are_advertised_unless_they_are_off() -> None:
    """Clients decide by the advertised keys alone. Kafka's APIs between brokers for the state of
    share groups (83 to 87) are not served: Penstock has one of its own."""
    ours = {ApiKey.SHARE_STATE}
    found = {key for key in Dispatcher().apis if "SHARE" in key.name} - ours
    assert {int(key) for key in found} == {76, 77, 78, 79, 90, 91, 92}
    off = Dispatcher(share_groups=False)
    assert {key for key in off.apis if "SHARE" in key.name} == ours


def fetch_request(version: int) -> ShareFetchRequest:
    request = ShareFetchRequest(
        group_id="jobs",
        member_id="anna",
        share_session_epoch=3,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=65536,
        max_records=10,
        batch_size=5,
        topics=[
            ShareFetchRequest.Topic(
                TOPIC_ID,
                [
                    ShareFetchRequest.Partition(
                        partition_index=2,
                        acknowledgement_batches=[
                            ShareFetchRequest.AcknowledgementBatch(7, 8, [1, 2])
                        ],
                    )
                ],
            )
        ],
        forgotten_topics_data=[ShareFetchRequest.ForgottenTopic(TOPIC_ID, [1])],
    )
    if version == 2:
        request.share_acquire_mode = 1
    return request


def fetch_bytes(version: int) -> str:
    return (
        "05 6a6f6273"  # group id
        "05 616e6e61"  # member id
        "00000003"  # session epoch
        "000001f4 00000001 00010000"  # max wait, min bytes, max bytes
        "0000000a 00000005"  # max records, batch size
        + ("01 00" if version == 2 else "")  # acquire mode, no renewal
        + f"02 {TOPIC_ID.hex()}"  # one topic
        "02 00000002"  # one partition
        "02 0000000000000007 0000000000000008"  # one batch of acknowledgements
        "03 01 02 00"  # accept, release; tags of the batch
        "00 00"  # tags of the partition and the topic
        f"02 {TOPIC_ID.hex()} 02 00000001 00"  # one forgotten partition
        "00"
    )


def acknowledge_request(version: int) -> ShareAcknowledgeRequest:
    request = ShareAcknowledgeRequest(
        group_id="jobs",
        member_id="anna",
        share_session_epoch=-1,
        topics=[
            ShareAcknowledgeRequest.Topic(
                TOPIC_ID,
                [
                    ShareAcknowledgeRequest.Partition(
                        0, [ShareAcknowledgeRequest.AcknowledgementBatch(0, 9, [version * 2])]
                    )
                ],
            )
        ],
    )
    request.is_renew_ack = version == 2
    return request


def acknowledge_bytes(version: int) -> str:
    return (
        "05 6a6f6273 05 616e6e61 ffffffff"
        + ("01" if version == 2 else "")  # renewal
        + f"02 {TOPIC_ID.hex()} 02 00000000"
        f"02 0000000000000000 0000000000000009 02 0{version * 2} 00"
        "00 00 00"
    )


def fetch_response() -> ShareFetchResponse:
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=30_000,
        responses=[
            ShareFetchResponse.TopicResponse(
                TOPIC_ID,
                [
                    ShareFetchResponse.PartitionData(
                        partition_index=2,
                        acknowledge_error_code=121,
                        current_leader=ShareFetchResponse.LeaderIdAndEpoch(1, 4),
                        records=b"xyz",
                        acquired_records=[ShareFetchResponse.AcquiredRecords(5, 6, 2)],
                    )
                ],
            )
        ],
    )


FETCH_RESPONSE_BYTES = (
    "00000000 0000 00"  # throttle time, no error
    "00007530"  # lock timeout
    f"02 {TOPIC_ID.hex()}"
    "02 00000002 0000 00"  # partition, no error
    "0079 00"  # error of its acknowledgements
    "00000001 00000004 00"  # leader, epoch
    "04 78797a"  # records
    "02 0000000000000005 0000000000000006 0002 00"  # acquired records
    "00 00"  # tags of the partition and the topic
    "01 00"  # no endpoints
)


@pytest.mark.parametrize(
    ("message", "version", "expected"),
    [
        (fetch_request(1), 1, fetch_bytes(1)),
        (fetch_request(2), 2, fetch_bytes(2)),
        (acknowledge_request(1), 1, acknowledge_bytes(1)),
        (acknowledge_request(2), 2, acknowledge_bytes(2)),
        (fetch_response(), 1, FETCH_RESPONSE_BYTES),
        (fetch_response(), 2, FETCH_RESPONSE_BYTES),
    ],
)
def test_messages_have_the_bytes_of_kafkas_protocol(
    message: Message, version: int, expected: str
) -> None:
    data = bytes.fromhex(expected)
    assert encode(message, version) == data
    assert decode_at(type(message), memoryview(data), version, 0)[0] == message
