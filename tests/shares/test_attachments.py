"""The attachment of a share state: bytes in a format of the leader's own."""

from __future__ import annotations

import pytest

from penstock.broker.coordinators.share_state_messages import (
    answer_of,
    operation_of,
    request_of,
    result_of,
)
from penstock.shares.formats import Entry, Snapshot, decode, record_of
from penstock.shares.image import Delta, ShareImage
from penstock.shares.state_port import SharePartitionId
from penstock.shares.state_requests import Read, Replace, StateAnswer, Write
from penstock.wire.errors import ErrorCode

WHERE = SharePartitionId("g", b"t" * 16, 3)
IMAGE = ShareImage(1, 2, 2, attachment=b"\x00\xff" * 500)
DELTA = Delta(1, 2, 2, -1, (), attachment=b"later")


@pytest.mark.parametrize("content", [DELTA, Snapshot(IMAGE), Delta(1, 2, 2, -1, ())])
def test_it_is_stored_with_the_state(content: Snapshot | Delta) -> None:
    entry = Entry(WHERE, content)
    assert decode(record_of(entry)) == entry


def test_it_is_sent_to_other_brokers() -> None:
    for request in (Write(WHERE, 4, 5, DELTA), Replace(WHERE, 4, 5, IMAGE)):
        assert request_of(operation_of(request)) == request
    answer = StateAnswer(ErrorCode.NONE, IMAGE, 7)
    assert answer_of(Read(WHERE, 4), result_of(answer)) == answer


def test_a_delta_replaces_it_unless_it_has_none() -> None:
    image = IMAGE.copy()
    assert image == IMAGE
    image.apply(Delta(1, 2, 2, -1, ()))
    assert image.attachment == IMAGE.attachment
    image.apply(DELTA)
    assert image.attachment == b"later"
    image.apply(DELTA._replace(state_epoch=0, attachment=b"earlier"))
    assert image.attachment == b"later"
