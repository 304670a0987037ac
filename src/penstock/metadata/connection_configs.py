"""Settings of connections and fetches, under Kafka's names."""

from __future__ import annotations

from typing import Final

from penstock.metadata.config_types import INT_MAX, ConfigType, Definition, Value, at_least
from penstock.security.addresses import parse_limits


def _check_overrides(value: Value) -> str | None:
    try:
        parse_limits(str(value))
    except ValueError as error:
        return str(error)
    return None


CONNECTION_CONFIGS: Final = (
    Definition(
        "max.connections",
        ConfigType.INT,
        INT_MAX,
        "The maximum number of connections that may be open at the same time. The inter-broker "
        "listener may exceed it if clients have another one; the longest idle connection of a "
        "client is closed then.",
        at_least(0),
    ),
    Definition(
        "max.connections.per.ip",
        ConfigType.INT,
        INT_MAX,
        "The maximum number of connections that may be open from one address.",
        at_least(0),
    ),
    Definition(
        "max.connections.per.ip.overrides",
        ConfigType.STRING,
        "",
        "max.connections.per.ip for some addresses or hosts: host1:10,10.0.0.7:20.",
        _check_overrides,
    ),
    Definition(
        "max.connection.creation.rate",
        ConfigType.INT,
        INT_MAX,
        "How many connections per second are accepted. Others are accepted later. The inter-broker "
        "listener is not limited if clients have another one.",
        at_least(0),
    ),
    Definition(
        "fair.sharing.enabled",
        ConfigType.BOOLEAN,
        True,
        "Whether an overloaded broker gives each user, or each address of clients that are not "
        "authenticated, an equal share.",
    ),
    Definition(
        "connections.max.idle.ms",
        ConfigType.LONG,
        600_000,
        "How long a connection may be idle before it is closed.",
        dynamic=False,
    ),
    Definition(
        "socket.request.max.bytes",
        ConfigType.INT,
        100 << 20,
        "The largest request that is accepted.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "fetch.max.bytes",
        ConfigType.INT,
        55 << 20,
        "The maximum number of bytes that one fetch returns.",
        at_least(1024),
        dynamic=False,
    ),
    Definition(
        "max.incremental.fetch.session.cache.slots",
        ConfigType.INT,
        1000,
        "The maximum number of fetch sessions that are kept.",
        at_least(0),
        dynamic=False,
    ),
)
