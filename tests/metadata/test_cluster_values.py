"""Stored values about the cluster are read as they were written, and invalid ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.cluster_values import (
    decode_broker,
    decode_cluster,
    decode_controller,
    decode_controller_epoch,
    decode_producer_ids,
    decode_stopping,
    encode_broker,
    encode_cluster,
    encode_controller,
    encode_controller_epoch,
    encode_producer_ids,
    encode_stopping,
)
from penstock.metadata.keys import broker_key
from penstock.metadata.model import BrokerInfo, Controller
from penstock.metadata.stored_fields import MetadataInvalid

IDS = st.binary(min_size=16, max_size=16).filter(lambda each: any(each[:15]))


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1), st.integers(1, 65535), st.none() | st.text(), IDS)
def test_values_are_read_as_they_were_written(
    text: str, port: int, rack: str | None, incarnation: bytes
) -> None:
    """Brokers and controller claims take their revision from the store."""
    since = port - 2
    broker = BrokerInfo(7, text, port, rack, incarnation, 99, since, since)
    assert decode_broker(broker_key(7), encode_broker(broker), 99) == broker
    claim = encode_controller(7, port, incarnation)
    assert decode_controller(claim, 99) == Controller(7, port, incarnation, 99)
    assert decode_controller_epoch(encode_controller_epoch(port)) == port
    assert decode_cluster(encode_cluster(text)) == text
    assert decode_stopping("/penstock/stopping/7", encode_stopping(port)) == port
    assert decode_producer_ids(encode_producer_ids(port, incarnation)) == port


@pytest.mark.parametrize(
    "value",
    [
        '"host":"","port":1',
        '"host":"h","port":0',
        '"host":"h"',
        '"host":"h","port":1,"synced_since":-2',
        '"host":"h","port":1,"fsync_since":-2',
        '"host":"h","port":1,"lossless_since":"1"',
    ],
)
def test_an_invalid_broker_registration_is_refused(value: str) -> None:
    """Clients cannot use an invalid address, and an invalid durability proof proves nothing."""
    text = f'{{"v":1,{value},"rack":null,"incarnation_id":"AQEBAQEBAQEBAQEBAQEBAQ"}}'
    with pytest.raises(MetadataInvalid):
        decode_broker("/penstock/brokers/1", text.encode(), 1)
