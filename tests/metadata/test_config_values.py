"""Stored configs are read as they were written, and invalid ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.config_values import decode_configs, encode_configs
from penstock.metadata.keys import broker_config_key
from penstock.metadata.stored_fields import MetadataInvalid


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1))
def test_configs_are_read_as_they_were_written(text: str) -> None:
    """Any name and any value."""
    key = broker_config_key(None)
    assert decode_configs(key, encode_configs({text: text})) == ({text: text}, 0)


def test_the_revision_of_a_durability_change_is_that_of_its_commit() -> None:
    """The writer does not know the revision yet. Later values contain it, and earlier versions
    wrote none."""
    key = broker_config_key(None)
    assert decode_configs(key, b'{"v":1,"configs":{}}', 7) == ({}, 0)
    assert decode_configs(key, encode_configs({}, -1), 8) == ({}, 8)
    assert decode_configs(key, encode_configs({}, 8), 9) == ({}, 8)
    with pytest.raises(MetadataInvalid, match="synced_from"):
        decode_configs(key, encode_configs({}, -2), 8)


def test_configs_that_are_not_strings_are_refused() -> None:
    """Penstock never writes a number there."""
    with pytest.raises(MetadataInvalid, match="map names to strings"):
        decode_configs("/penstock/configs/brokers/1", b'{"v":1,"configs":{"a":1}}')
