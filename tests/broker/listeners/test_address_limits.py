"""max.connections.per.ip.overrides: addresses at once, names when they are looked up."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from broker.harness import BrokerHarness, with_harness
from penstock.broker.listeners import address_limits
from penstock.broker.listeners.address_limits import AddressLimits
from penstock.net.admission import Admission
from penstock.net.config import ServerConfig


@with_harness
async def test_a_text_that_is_no_host_name_is_logged(harness: BrokerHarness) -> None:
    """The look-up goes on: the other names get their limits."""
    limits = AddressLimits(harness.broker._env)
    admission = Admission(ServerConfig())
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        logged = logging.getLogger(address_limits.__name__)
        patch.setattr(logged, "warning", lambda text, *values: lines.append(text % values))
        limits.apply(f"a..b:2,{'x' * 70}:2,localhost:3", admission)
        await limits.look_up()
    assert len(lines) == 2
    assert "a..b cannot be resolved" in lines[0]
    assert admission.of_address["127.0.0.1"] == 3


def fake_look_up(known: dict[str, list[str]]) -> Any:
    def getaddrinfo(name: str, port: None, **kind: int) -> list[Any]:
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, kind["type"], 0, "", (address, 0)) for address in known[name]]

    return getaddrinfo


@with_harness
async def test_names_are_looked_up_and_keep_their_addresses(harness: BrokerHarness) -> None:
    limits = AddressLimits(harness.broker._env)
    admission = Admission(ServerConfig())
    lines: list[str] = []
    logged = logging.getLogger(address_limits.__name__)
    text = "10.0.0.1:1,gateway:2,unknown:3"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            socket, "getaddrinfo", fake_look_up({"gateway": ["10.0.0.2", "::ffff:10.0.0.1"]})
        )
        limits.apply(text, admission)
        assert admission.of_address == {"10.0.0.1": 1}
        await limits.look_up()
        assert admission.of_address == {"10.0.0.1": 1, "10.0.0.2": 2}
        patch.setattr(socket, "getaddrinfo", fake_look_up({}))
        patch.setattr(logged, "warning", lambda text, *values: lines.append(text % values))
        await limits.look_up()
        assert len(lines) == 2
        assert "unknown cannot be resolved" in lines[1]
        assert "use an address" in lines[1]
        assert admission.of_address == {"10.0.0.1": 1, "10.0.0.2": 2}
        limits.apply("gateway:7", admission)
        assert admission.of_address == {"10.0.0.1": 7, "10.0.0.2": 7}
        limits.apply("", admission)
        assert admission.of_address == {}
