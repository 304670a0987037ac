"""The metadata store of many machines, in etcd 3.4 or newer.

etcd orders all changes by consensus of its members; a commit is answered when most of them have it
on disk. Reads are linearizable: they too go through that order. A commit is one etcd transaction:
the compares are on revisions of keys, so it carries its own guard and needs no lock.

Keys begin with a slash and lie in etcd under the namespace of the address, so clusters can share an
etcd. They then share its revisions too: between two changes of ours any number may have gone to
others, and the revision of a range, or of a commit that changed nothing, may be one that no watch
of ours will ever show.

What a call that raised has done: nothing, unless it raised `OutcomeUnknown`, which only `commit`
does. All other calls can be made twice and are, at another member, until their time is up.

A lease lives for whole seconds, and no less than etcd's election timeout and a half: what is asked
for is rounded up. etcd counts that time, so a lease ends while its holder is frozen. When etcd's
leader changes, all leases begin their time anew.

A watch outlives members: it begins again, at another one, with the first revision it has not given
out. It has no time limit; while etcd is away it is silent, and whoever needs to know holds a lease.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from aetcd import rpc

from penstock.ports import Clock, Committed, Compare, Delete, KeyValue, Put, Random, WatchEvent
from penstock.stores.errors import LeaseNotFound, StoreFull, StoreUnavailable
from penstock.stores.etcd_address import EtcdAddress
from penstock.stores.etcd_failures import LEASE_NOT_FOUND
from penstock.stores.etcd_members import METADATA, EtcdConfig, Member, Members
from penstock.stores.etcd_watch import WatchLost, WatchStream

_log = logging.getLogger(__name__)
_NO_LEASE: Final = 0


class EtcdStore:
    """Implements `ports.MetadataStore`; made by `open`."""

    def __init__(self, members: Members, address: EtcdAddress, config: EtcdConfig) -> None:
        self._members = members
        self._namespace = address.namespace
        self._config = config
        self._full: str | None = None

    @property
    def full(self) -> str | None:
        return self._full

    @classmethod
    async def open(
        cls,
        address: EtcdAddress,
        clock: Clock,
        random: Random,
        config: EtcdConfig = EtcdConfig(),  # noqa: B008 -- frozen
    ) -> EtcdStore:
        """Connect, and see that etcd answers."""
        members = Members(address, clock, random, config)
        store = cls(members, address, config)
        try:
            await store.get("/")
        except BaseException:
            await members.close()
            raise
        return store

    async def get(self, key: str) -> KeyValue | None:
        response = await self._range(rpc.RangeRequest(key=self._inside(key)))
        return self._entry(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        start = self._inside(prefix or "/")
        response = await self._range(rpc.RangeRequest(key=start, range_end=_prefix_end(start)))
        return [self._entry(entry) for entry in response.kvs], response.header.revision

    async def commit(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Committed:
        """No key may be changed twice in one commit."""
        keys = [change.key for change in changes]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"one commit changes {', '.join(twice)} twice: change each key once")
        request = rpc.TxnRequest(
            compare=[self._compare(compare) for compare in compares],
            success=[self._operation(change) for change in changes],
        )

        async def ask(member: Member, timeout_s: float) -> Any:
            return await member.kv.Txn(request, timeout=timeout_s, metadata=METADATA)

        try:
            response = await self._members.once(ask)
        except StoreFull as error:
            self._full = str(error)
            raise
        except StoreUnavailable as error:
            if not _says(error, LEASE_NOT_FOUND):
                raise
            raise LeaseNotFound(await self._missing_lease(changes)) from error
        if response.succeeded and any(isinstance(change, Put) for change in changes):
            self._full = None
        return Committed(response.succeeded, response.header.revision)

    async def grant_lease(self, ttl_s: float) -> int:
        if not ttl_s > 0:
            raise ValueError(f"a lease of {ttl_s} s: ask for more than 0")
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s))

        # Asked twice, one lease too many is granted: it holds nothing and expires.
        async def ask(member: Member, timeout_s: float) -> Any:
            return await member.lease.LeaseGrant(request, timeout=timeout_s, metadata=METADATA)

        lease: int = (await self._members.repeat(ask)).ID
        return lease

    async def keep_alive(self, lease: int, carry_s: float = 0.0) -> bool:
        """Nothing is carried: the connections to etcd live on the event loop."""
        request = rpc.LeaseKeepAliveRequest(ID=lease)

        async def ask(member: Member, timeout_s: float) -> Any:
            call = member.lease.LeaseKeepAlive(
                iter((request,)), timeout=timeout_s, metadata=METADATA
            )
            try:
                async for response in call:
                    return response
            finally:
                call.cancel()
            raise StoreUnavailable(f"etcd at {member.endpoint} closed a renewal unanswered")

        ttl_s: int = (await self._members.repeat(ask)).TTL
        return ttl_s > 0

    async def revoke_lease(self, lease: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease)

        async def ask(member: Member, timeout_s: float) -> Any:
            return await member.lease.LeaseRevoke(request, timeout=timeout_s, metadata=METADATA)

        try:
            await self._members.repeat(ask)
        except StoreUnavailable as error:
            # Gone already: by expiry, by another handle, or by our first attempt.
            if not _says(error, LEASE_NOT_FOUND):
                raise

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        start = self._inside(prefix or "/")
        # To etcd, revision 0 would mean: from now on.
        next_revision = max(from_revision, 1)
        failures = 0
        while True:
            self._members.require_open()
            stream = WatchStream(self._members, self._config.attempt_timeout_s)
            try:
                await stream.open(start, _prefix_end(start), next_revision)
                failures = 0
                while True:
                    batch = [self._event(event) for event in await stream.read()]
                    if batch:
                        next_revision = batch[-1].revision + 1
                        yield batch
            except WatchLost as error:
                _log.debug("watch of %s from %d on: %s", prefix, next_revision, error)
                failures += 1
            finally:
                stream.close()
            await self._members.pause(failures)

    async def close(self) -> None:
        """Calls under way are answered, watches and later calls raise `StoreClosed`."""
        await self._members.close()

    async def _range(self, request: Any) -> Any:
        async def ask(member: Member, timeout_s: float) -> Any:
            return await member.kv.Range(request, timeout=timeout_s, metadata=METADATA)

        return await self._members.repeat(ask)

    async def _missing_lease(self, changes: Sequence[Put | Delete]) -> int:
        leases = {change.lease for change in changes if isinstance(change, Put)} - {_NO_LEASE}
        for lease in sorted(leases)[:-1]:
            request = rpc.LeaseTimeToLiveRequest(ID=lease)

            async def ask(member: Member, timeout_s: float, request: Any = request) -> Any:
                return await member.lease.LeaseTimeToLive(
                    request, timeout=timeout_s, metadata=METADATA
                )

            if (await self._members.repeat(ask)).TTL <= 0:
                return lease
        return max(leases)

    def _inside(self, key: str) -> bytes:
        if not key.startswith("/"):
            raise ValueError(f"the key {key!r}: begin it with a slash")
        return (self._namespace + key).encode()

    def _outside(self, key: bytes) -> str:
        return key.decode().removeprefix(self._namespace)

    def _entry(self, entry: Any) -> KeyValue:
        return KeyValue(
            self._outside(entry.key),
            entry.value,
            entry.create_revision,
            entry.mod_revision,
            entry.lease,
        )

    def _event(self, event: Any) -> WatchEvent:
        deleted = event.type == rpc.Event.DELETE
        value = None if deleted else event.kv.value
        return WatchEvent(self._outside(event.kv.key), value, event.kv.mod_revision)

    def _compare(self, compare: Compare) -> Any:
        return rpc.Compare(
            result=rpc.Compare.EQUAL,
            target=rpc.Compare.MOD,
            key=self._inside(compare.key),
            mod_revision=compare.modify_revision,
        )

    def _operation(self, change: Put | Delete) -> Any:
        key = self._inside(change.key)
        if isinstance(change, Delete):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
        put = rpc.PutRequest(key=key, value=change.value, lease=change.lease)
        return rpc.RequestOp(request_put=put)


def _says(error: BaseException, details: str) -> bool:
    cause = error.__cause__
    return isinstance(cause, rpc.AioRpcError) and (cause.details() or "").startswith(details)


def _prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix: UTF-8 has no byte that is the last."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
