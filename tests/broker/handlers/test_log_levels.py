"""The levels of a broker's loggers can be described and changed while it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.metadata.config_changes import ConfigOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from .test_admin_configs import BROKER_LOGGER, DELETE, SET, Edit, describe

LOGGER = "penstock.broker.control.controller"


@pytest.fixture(autouse=True)
def levels_as_before() -> Iterator[None]:
    loggers = [logging.root, logging.getLogger("penstock"), logging.getLogger(LOGGER)]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


async def alter(
    harness: BrokerHarness, *edits: Edit, name: str = "0", validate_only: bool = False
) -> tuple[int, str | None]:
    configs = [
        IncrementalAlterConfigsRequest.Config(key, operation, value)
        for key, operation, value in edits
    ]
    resource = IncrementalAlterConfigsRequest.Resource(BROKER_LOGGER, name, configs)
    request = IncrementalAlterConfigsRequest([resource], validate_only)
    response = await harness.ask(request, 1, IncrementalAlterConfigsResponse)
    (answer,) = response.responses
    assert (answer.resource_type, answer.resource_name) == (BROKER_LOGGER, name)
    return answer.error_code, answer.error_message


async def level(harness: BrokerHarness, name: str = LOGGER) -> str | None:
    (config,) = (await describe(harness, BROKER_LOGGER, "0", [name])).configs
    assert (config.config_source, config.read_only) == (6, False)
    return config.value


@with_harness
async def test_a_log_level_can_be_set_and_removed(harness: BrokerHarness) -> None:
    """Without its own level, a logger has the level of its parent."""
    assert await alter(harness, ("root", SET, "WARN")) == (0, None)
    assert (await level(harness, "root"), await level(harness)) == ("WARN", "WARN")
    assert await alter(harness, (LOGGER, SET, "debug")) == (0, None)
    assert logging.getLogger(LOGGER).isEnabledFor(logging.DEBUG)
    assert (await level(harness, "root"), await level(harness)) == ("WARN", "DEBUG")
    assert await alter(harness, (LOGGER, DELETE, None)) == (0, None)
    assert await level(harness) == "WARN"
    shown = {each.name for each in (await describe(harness, BROKER_LOGGER, "0")).configs}
    assert {"root", LOGGER} <= shown


@with_harness
async def test_every_log_level_of_kafka_is_accepted(harness: BrokerHarness) -> None:
    for given, shown in (
        ("TRACE", "DEBUG"),
        ("DEBUG", "DEBUG"),
        ("INFO", "INFO"),
        ("WARN", "WARN"),
        ("ERROR", "ERROR"),
        ("FATAL", "FATAL"),
    ):
        assert await alter(harness, (LOGGER, SET, given)) == (0, None)
        assert await level(harness) == shown


@with_harness
async def test_an_invalid_change_of_log_levels_changes_nothing(harness: BrokerHarness) -> None:
    before = await level(harness)
    for edit, code in (
        (("penstock.nowhere", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        ((LOGGER, SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        ((LOGGER, ConfigOperation.APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
    ):
        assert (await alter(harness, (LOGGER, SET, "FATAL"), edit))[0] == code
    assert await alter(harness, (LOGGER, SET, "FATAL"), validate_only=True) == (0, None)
    assert await level(harness) == before


@with_harness_of(brokers=2)
async def test_a_broker_changes_only_its_own_loggers(harness: BrokerHarness) -> None:
    assert (await alter(harness, (LOGGER, SET, "FATAL"), name="1"))[0] == ErrorCode.INVALID_REQUEST
