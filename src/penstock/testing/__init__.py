"""A real broker for tests, and a proxy that injects faults: for any Kafka client.

    from penstock.testing import Broker

    with Broker() as broker:
        topic = broker.new_topic(partitions=3)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

In pytest the fixtures `penstock_broker`, `penstock_topic` and `penstock_faults` are available
without an import, and `penstock_pipeline` for Spark pipelines (`penstock.testing.pipelines`). The
names of this package are loaded when they are first used: every pytest run in an environment with
Penstock imports this package, and most do not need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.broker import Broker, BrokerFailed
    from penstock.testing.faults import Faults

__all__ = ["Broker", "BrokerFailed", "Faults"]

_HOMES = {
    "Broker": "penstock.testing.broker",
    "BrokerFailed": "penstock.testing.broker",
    "Faults": "penstock.testing.faults",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
