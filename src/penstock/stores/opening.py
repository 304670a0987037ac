"""Opens the metadata store that an address names, whatever kind it is.

a path                 the SQLite file of a cluster on one machine
etcd://HOST:2379/NAME  etcd, with the extra penstock[etcd]
zk://HOST:2181/NAME    ZooKeeper, with the extra penstock[zookeeper]
"""

from __future__ import annotations

from typing import Final

from penstock.ports import Clock, Executor, MetadataStore, Random
from penstock.stores import etcd_address, zk_address
from penstock.stores.errors import StoreUnavailable
from penstock.stores.sqlite import SqliteStore

MARK: Final = "/penstock/copying"
"""A store with this key has a part of a copy that did not end (`penstock store copy`)."""


class ExtraMissing(StoreUnavailable):
    """The client library for this kind of store is not installed."""


def shown(address: str) -> str:
    """Returns an address without its options, for messages. Raises `ValueError` if it is none."""
    if etcd_address.is_etcd(address):
        return str(etcd_address.parse_address(address))
    if zk_address.is_zookeeper(address):
        return str(zk_address.parse_address(address))
    if "://" in address:
        # Only the beginning: the rest may contain a password.
        scheme = address.partition("://")[0]
        raise ValueError(
            f"the store begins with {scheme + '://'!r}: write a path, etcd://HOST:PORT or "
            "zk://HOST:PORT"
        )
    return address


async def open_store(
    address: str, clock: Clock, random: Random, executor: Executor
) -> MetadataStore:
    """Opens a store. A SQLite file is created if it does not exist.

    Raises `ValueError` if the address is not valid, and `ExtraMissing`."""
    if etcd_address.is_etcd(address):
        parsed = etcd_address.parse_address(address)
        try:
            from penstock.stores.etcd import EtcdStore  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise _missing(parsed, "etcd") from error
        return await EtcdStore.open(parsed, clock, random)
    if zk_address.is_zookeeper(address):
        ensemble = zk_address.parse_address(address)
        try:
            from penstock.stores.zookeeper import ZooKeeperStore  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise _missing(ensemble, "zookeeper") from error
        return await ZooKeeperStore.open(ensemble, clock, random, executor)
    return await SqliteStore.open(shown(address), executor, clock)


def _missing(address: object, extra: str) -> ExtraMissing:
    return ExtraMissing(f"{address} needs the {extra} extra: pip install 'penstock[{extra}]'")
