"""A key has one form, and all keys have one prefix."""

from __future__ import annotations

import pytest

from penstock.metadata.keys import (
    BROKERS_PREFIX,
    CLUSTER_KEY,
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    PREFIX,
    PRODUCER_IDS_KEY,
    broker_config_key,
    broker_id_of,
    broker_key,
    topic_key,
)
from penstock.metadata.stored_fields import MetadataInvalid


@pytest.mark.parametrize("text", ["07", "-1", "x", "", "2147483648", "٣"])
def test_a_broker_key_has_one_form(text: str) -> None:
    """Otherwise two keys could mean the same broker."""
    with pytest.raises(MetadataInvalid):
        broker_id_of(BROKERS_PREFIX + text, BROKERS_PREFIX)


def test_all_keys_have_one_prefix() -> None:
    """So one watch sees them all."""
    for key in (
        topic_key("t"),
        broker_key(1),
        broker_config_key(1),
        broker_config_key(None),
        CLUSTER_KEY,
        CONTROLLER_KEY,
        CONTROLLER_EPOCH_KEY,
        PRODUCER_IDS_KEY,
    ):
        assert key.startswith(PREFIX)
