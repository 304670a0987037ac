"""Which brokers are said to share fairly."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.admin.fair_sharing import SETTING, fair_sharing_text, find_fair_sharing
from penstock.client.admin.operations import ConfigEntry
from penstock.client.errors import BrokerError
from penstock.metadata.config_types import ConfigSource
from penstock.wire.errors import ErrorCode

SOURCE = ConfigSource.DEFAULT_CONFIG


class FakeAdmin:
    """A cluster whose brokers have the setting, or not, or refuse to show it."""

    def __init__(self, values: dict[int, str | None]) -> None:
        self._values = values

    async def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None
    ) -> dict[str, ConfigEntry]:
        assert broker is not None
        value = self._values[broker]
        if value == "refused":
            raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not for you")
        if value is None:
            return {}
        return {SETTING: ConfigEntry(SETTING, value, SOURCE, False, False, None)}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({0: "true", 1: "true"}, "fair sharing: on"),
        ({0: "false", 1: "false"}, "fair sharing: off"),
        ({0: "true", 1: "false", 2: "true"}, "fair sharing: on at brokers 0, 2 only"),
        ({0: "true", 1: "refused", 2: None}, "fair sharing: on"),
        ({0: "refused", 1: None}, "fair sharing: unknown"),
    ],
)
def test_brokers_that_do_not_tell_are_left_out(values: dict[int, str | None], text: str) -> None:
    found = asyncio.run(find_fair_sharing(FakeAdmin(values), values))
    assert found == {k: v == "true" for k, v in values.items() if v in ("true", "false")}
    assert fair_sharing_text(found) == text
