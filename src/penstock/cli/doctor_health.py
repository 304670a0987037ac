"""Reads each broker's own health report for `penstock doctor`.

A broker knows things that clients cannot see: the metadata store is full, a log has failed, a duty
of the controller fails. It reports them at `/health/ready` on its metrics port. The doctor tries
the default metrics port. By default that port accepts connections from the broker's own machine
only. A broker with a token shows its report only to a doctor that has the token.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import h11

from penstock.broker.config import METRICS_OFFSET
from penstock.cli.doctor_finding import Finding, State
from penstock.client.admin.operations import BrokerInfo

_PATIENCE_S: Final = 5.0
"""The broker waits up to two seconds for its disk, and up to two for its store."""
_PAGE_BYTES_MAX: Final = 1 << 20
_READ_BYTES: Final = 1 << 16
_PASSING: Final = ("serving", "fetchers")
"""Checks that fail for a while after every start of a broker."""
_ANOTHER: Final = "another program is listening there"
_UNAUTHORIZED: Final = 401


@dataclass(frozen=True, slots=True)
class MetricsAccess:
    """How to read the pages of metrics endpoints."""

    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    """None for plain HTTP."""


OPEN: Final = MetricsAccess()


async def check_health(broker: BrokerInfo, access: MetricsAccess = OPEN) -> list[Finding]:
    """Returns the findings of the broker's health report, or a note if it cannot be read."""
    name = f"health of {broker.id}"
    host, port = broker.address.host, broker.address.port + METRICS_OFFSET
    try:
        async with asyncio.timeout(_PATIENCE_S):
            page = await _page(host, port, "/health/ready", access)
        return [*findings_of(name, _report(page, broker.id))]
    except TimeoutError:
        reason = "no answer in time"
    except (OSError, ValueError) as error:
        reason = str(error)
    advice = (
        "run this on the broker's machine, or open /health/ready at its metrics address; a broker "
        "with a token or TLS needs --metrics-token-file or --metrics-ca"
    )
    return [Finding(name, State.NOTE, f"cannot be read at {host}:{port}: {reason}", advice)]


def _report(page: bytes, broker_id: int) -> dict[str, Any]:
    report = json.loads(page)
    if isinstance(report, dict) and "ready" in report and "broker" not in report:
        raise ValueError("it needs a token: give --metrics-token-file")
    if not isinstance(report, dict) or report.get("broker") != broker_id:
        raise ValueError(_ANOTHER)
    return report


def findings_of(name: str, report: dict[str, Any]) -> Iterator[Finding]:
    """Yields a finding for each failed check, or a single OK if none failed."""
    failed = [check for check in report.get("checks", ()) if not check["ok"]]
    for check in failed:
        state = State.WARNING if check["check"] in _PASSING else State.PROBLEM
        yield Finding(name, state, check["what"], check["advice"])
    if not failed:
        yield Finding(name, State.OK, "ready")


async def _page(host: str, port: int, path: str, access: MetricsAccess) -> bytes:
    """Returns the page's body. A broker that is not ready answers 503, and a report as well."""
    reader, writer = await asyncio.open_connection(host, port, ssl=access.tls)
    http, body = h11.Connection(h11.CLIENT), bytearray()
    try:
        headers = [("Host", f"{host}:{port}")]
        if access.token is not None:
            headers.append(("Authorization", f"Bearer {access.token}"))
        asked = h11.Request(method="GET", target=path, headers=headers)
        writer.write((http.send(asked) or b"") + (http.send(h11.EndOfMessage()) or b""))
        while not isinstance(event := http.next_event(), (h11.EndOfMessage, h11.ConnectionClosed)):
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.Response) and event.status_code == _UNAUTHORIZED:
                raise ValueError(
                    "it does not accept this token: give the broker's own with --metrics-token-file"
                )
            if len(body) > _PAGE_BYTES_MAX:
                raise ValueError(_ANOTHER)
    except h11.RemoteProtocolError as error:
        raise ValueError(_ANOTHER) from error
    finally:
        writer.close()
    return bytes(body)
