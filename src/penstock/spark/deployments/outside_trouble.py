"""Recognises failures for which the version of a pipeline is not to blame. Pure.

A full disk and a missing right stop every version. So such a failure does not count towards an
automatic rollback, which would only replace a version that is sound. It is tried again after a
pause, and the status says what to do.

Brokers that do not answer also stop every version, unless the version asks for brokers that do not
exist. So the addresses in an error of our client are compared with those of the worker's cluster:

    the error names a broker of the worker's cluster    the version is not to blame
    it names only other addresses                       the version may have a wrong address
    it names no address, such as a time-out             the version may be to blame
    it complains about TLS or a login                   the version may have wrong settings

If the worker itself has just lost its cluster, the version is to blame for none of them. An address
may be another name of the same broker. If it is wrong, the attempts after the outage show that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from penstock.client.address import Address, parse_bootstrap

JUST_LOST_S: Final = 60.0
"""An outage explains errors for this long after its end: clients repeat their calls for a minute,
and then report why that failed."""


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """What a worker knows about its cluster when a driver ends."""

    addresses: frozenset[str] = frozenset()
    """The addresses of the brokers: those that the worker was given, and those that the cluster
    has told it. One entry may be a list with commas."""
    lost_s: float | None = None
    """How long ago the worker last had no contact with the cluster; 0: it has none now. None: it
    never lost it."""


UNKNOWN_CLUSTER: Final = ClusterSeen()

_ADVICE: Final = (
    (
        re.compile(r"No space left on device|Disk quota exceeded|\bENOSPC\b", re.IGNORECASE),
        "free space on the disk of the worker",
    ),
    (
        re.compile(
            r"\bthis user may not |\bnot allowed on this (topic|group|cluster|transactional id)|"
            r"(Topic|Group|Cluster|TransactionalId)AuthorizationException|Not authorized to access",
        ),
        "grant the right with penstock acl add, or give the pipeline a user who has it",
    ),
    (
        re.compile(r"Too many open files|Cannot allocate memory|\bthe driver cannot be run: "),
        "see the log of the worker, and free memory or processes on its machine",
    ),
)
_NO_BROKERS: Final = "the brokers of its worker do not answer, see penstock status"

_ADDRESS: Final = r"(?:\[[^\]\s]+\]|[^\s:\[\],;=]+):\d+"
_NAMED: Final = re.compile(
    rf"\bcannot connect to kafka\.bootstrap\.servers=(?P<given>.+?): "
    rf"|\bcannot connect to (?P<tried>{_ADDRESS}): "
    rf"|\bthe connection to (?P<closed>{_ADDRESS}) was closed"
    rf"|\bthe broker at (?P<left>{_ADDRESS}) closed the connection"
    rf"|(?P<silent>{_ADDRESS}) did not answer \w+ within "
)
"""The errors ConnectFailed, ConnectionLost and RequestTimedOut of a connection. Spark passes on
only their texts."""
_ANY_BROKER: Final = re.compile(r"\bcannot connect to any broker: (?P<reasons>.*)")
_REASON: Final = re.compile(rf"(?P<address>{_ADDRESS}): ")
_NAMELESS: Final = re.compile(
    r"\bcannot connect to (any broker|broker \d+): |\bgave up after [\d.e+]+ s: "
    r"|: not acknowledged within delivery_timeout_ms=|\bbatches are not acknowledged yet"
    r"|\bthe cluster did not answer within |\bthe group coordinator has not answered"
    r"|\bno broker sent anything|\bthe brokers have not reported the start offset"
)
"""Errors of clients whose calls took too long, in which no address needs to be."""
_SETTINGS: Final = re.compile(r"\bTLS\b|\bcertificate\b|\bsecurity_protocol\b")
"""The errors suggest that the client has wrong settings. Other causes have the same errors."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt to run a pipeline."""

    error: str
    """For people, with what to do."""
    outside: bool = False
    """Whether the version is not to blame."""
    lasting: bool = False
    """Whether another attempt has the same result."""


def judged(
    error: str,
    cluster: ClusterSeen = UNKNOWN_CLUSTER,
    *,
    outside: bool = False,
    lasting: bool = False,
) -> Failure:
    """Decides whether the version may be to blame, and adds what to do unless the error says it.
    `outside`: it is known already that the version is not to blame."""
    advice = _advice(error, cluster)
    is_told = not advice or "penstock acl add" in error
    text = error if is_told else f"{error}: {advice}"
    return Failure(text, outside or bool(advice), lasting)


def _advice(error: str, cluster: ClusterSeen) -> str:
    """Returns what to do about a failure that is not the version's fault; empty if it may be."""
    if _is_outage(error, cluster):
        return _NO_BROKERS
    return next((text for pattern, text in _ADVICE if pattern.search(error)), "")


def _is_outage(error: str, cluster: ClusterSeen) -> bool:
    """Whether a driver has failed because the brokers of the worker did not answer."""
    named = frozenset(_addresses(error))
    if not named and _NAMELESS.search(error) is None:
        return False
    if cluster.lost_s is not None and cluster.lost_s <= JUST_LOST_S:
        return True
    return not named.isdisjoint(_brokers(cluster.addresses)) and _SETTINGS.search(error) is None


def _addresses(error: str) -> Iterator[Address]:
    """Yields the brokers that an error of our client names."""
    found = [text for each in _NAMED.finditer(error) for text in each.groups() if text]
    for each in _ANY_BROKER.finditer(error):
        reasons = map(_REASON.match, each["reasons"].split("; "))
        found += [reason["address"] for reason in reasons if reason is not None]
    return _brokers(found)


def _brokers(texts: Iterable[str]) -> Iterator[Address]:
    for text in texts:
        try:
            found = parse_bootstrap(text)
        except ValueError:
            continue
        for host, port in found:
            yield Address("localhost" if _is_loopback(host) else host.lower().rstrip("."), port)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
