"""The metadata store for many machines, in etcd 3.4 or newer.

etcd orders all changes by consensus of its members. A commit is answered once a majority has it on
disk. Reads are linearizable: they go through the same order. A commit is one etcd transaction. Its
conditions are revisions of keys, so it carries its own guard and needs no lock.

Keys begin with a slash and are stored in etcd under the namespace of the address, so several
clusters can share an etcd. They then share its revisions too. Other clusters may use any number of
revisions between two changes of ours, and the revision of a range, or of a commit that changed
nothing, may be one that none of our watches will ever show.

A call that raised did nothing, unless it raised `OutcomeUnknown`, which only `commit` does, or
`StoreFull` with `may_have_happened`. All calls except `commit` can safely be made twice, and are
repeated at another member until their time is up.

A lease lasts a whole number of seconds, and at least one and a half times etcd's election timeout;
the requested time is rounded up. etcd counts that time, so a lease also ends while its holder is
frozen. When etcd's leader changes, the time of all leases begins again.

A watch survives the failure of a member: it begins again at another one, with the first revision
that it has not returned yet. It has no time limit. While etcd is unreachable it is silent; a caller
that needs to know holds a lease.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from aetcd import rpc

from penstock.ports import Clock, Committed, Compare, Delete, KeyValue, Put, Random, WatchEvent
from penstock.stores.errors import LeaseNotFound, StoreFull, StoreUnavailable, StoreUnreachable
from penstock.stores.etcd_address import EtcdAddress
from penstock.stores.etcd_failures import LEASE_NOT_FOUND
from penstock.stores.etcd_login import Metadata
from penstock.stores.etcd_members import EtcdConfig, Member, Members, says
from penstock.stores.etcd_watch import WatchDenied, WatchLost, WatchStream

_log = logging.getLogger(__name__)
_NO_LEASE: Final = 0
_DENIALS_MAX: Final = 5
"""How often in sequence a watch is denied although its user may read the keys."""


class EtcdStore:
    """Implements `ports.MetadataStore`. Created by `open`."""

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
        """Connects, and checks that etcd answers."""
        members = Members(address, clock, random, config)
        if address.user and not address.ca and not address.is_local:
            _log.warning(
                "the password for %s crosses the network in plain text: use TLS, ?ca=FILE", address
            )
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
        """Commits the changes. A key may be changed only once in one commit."""
        keys = [change.key for change in changes]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"one commit changes {', '.join(twice)} twice: change each key once")
        request = rpc.TxnRequest(
            compare=[self._compare(compare) for compare in compares],
            success=[self._operation(change) for change in changes],
        )

        async def ask(member: Member, timeout_s: float, metadata: Metadata) -> Any:
            return await member.kv.Txn(request, timeout=timeout_s, metadata=metadata)

        try:
            response = await self._members.once(ask)
        except StoreFull as error:
            self._full = str(error)
            raise
        except StoreUnavailable as error:
            if not says(error, LEASE_NOT_FOUND):
                raise
            raise LeaseNotFound(await self._missing_lease(changes)) from error
        if response.succeeded and any(isinstance(change, Put) for change in changes):
            self._full = None
        return Committed(response.succeeded, response.header.revision)

    async def grant_lease(self, ttl_s: float) -> int:
        if not ttl_s > 0:
            raise ValueError(f"a lease of {ttl_s} s is not possible: it must be longer than 0 s")
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s))

        # If this is repeated, one lease too many is granted. It holds nothing and expires.
        async def ask(member: Member, timeout_s: float, metadata: Metadata) -> Any:
            return await member.lease.LeaseGrant(request, timeout=timeout_s, metadata=metadata)

        lease: int = (await self._members.repeat(ask)).ID
        return lease

    async def keep_alive(self, lease: int, carry_s: float = 0.0) -> bool:
        """Renews the lease. `carry_s` has no effect: the connections to etcd run on the event
        loop."""
        request = rpc.LeaseKeepAliveRequest(ID=lease)

        async def ask(member: Member, timeout_s: float, metadata: Metadata) -> Any:
            call = member.lease.LeaseKeepAlive(
                iter((request,)), timeout=timeout_s, metadata=metadata
            )
            try:
                async for response in call:
                    return response
            finally:
                call.cancel()
            raise StoreUnavailable(
                f"etcd at {member.endpoint} closed the stream for lease renewals without an answer"
            )

        ttl_s: int = (await self._members.repeat(ask)).TTL
        return ttl_s > 0

    async def revoke_lease(self, lease: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease)

        async def ask(member: Member, timeout_s: float, metadata: Metadata) -> Any:
            return await member.lease.LeaseRevoke(request, timeout=timeout_s, metadata=metadata)

        try:
            await self._members.repeat(ask)
        except StoreUnavailable as error:
            # Already gone: expired, or revoked by another handle or by our first attempt.
            if not says(error, LEASE_NOT_FOUND):
                raise

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        start = self._inside(prefix or "/")
        # To etcd, revision 0 means "from now on".
        next_revision = max(from_revision, 1)
        failures = denials = 0
        while True:
            try:
                metadata = await self._members.metadata()
            except StoreUnreachable:
                continue
            stream = WatchStream(self._members, metadata, self._config.attempt_timeout_s)
            try:
                await stream.open(start, _prefix_end(start), next_revision)
                failures = denials = 0
                while True:
                    batch = [self._event(event) for event in await stream.read()]
                    if batch:
                        next_revision = batch[-1].revision + 1
                        yield batch
            except WatchDenied as denied:
                denials += 1
                if denials > _DENIALS_MAX or not self._members.login.forget(metadata):
                    raise denied.error from denied
                # etcd 3.4 does not say whether the token is invalid or a right is missing. If a
                # right is, this read raises.
                failures += not await self._can_read(start)
            except WatchLost as error:
                _log.debug(
                    "the watch of %s was lost at revision %d and is opened again: %s",
                    prefix,
                    next_revision,
                    error,
                )
                failures += 1
            finally:
                stream.close()
            await self._members.pause(failures)

    async def close(self) -> None:
        """Finishes the calls in progress. Watches and later calls raise `StoreClosed`."""
        await self._members.close()

    async def _range(self, request: Any) -> Any:
        async def ask(member: Member, timeout_s: float, metadata: Metadata) -> Any:
            return await member.kv.Range(request, timeout=timeout_s, metadata=metadata)

        return await self._members.repeat(ask)

    async def _can_read(self, start: bytes) -> bool:
        """Returns False if etcd cannot be reached. Raises `StoreRefused` if the user may not read
        what begins with `start`."""
        try:
            await self._range(
                rpc.RangeRequest(key=start, range_end=_prefix_end(start), count_only=True)
            )
        except StoreUnreachable:
            return False
        return True

    async def _missing_lease(self, changes: Sequence[Put | Delete]) -> int:
        leases = {change.lease for change in changes if isinstance(change, Put)} - {_NO_LEASE}
        for lease in sorted(leases)[:-1]:
            request = rpc.LeaseTimeToLiveRequest(ID=lease)

            async def ask(
                member: Member, timeout_s: float, metadata: Metadata, request: Any = request
            ) -> Any:
                return await member.lease.LeaseTimeToLive(
                    request, timeout=timeout_s, metadata=metadata
                )

            if (await self._members.repeat(ask)).TTL <= 0:
                return lease
        return max(leases)

    def _inside(self, key: str) -> bytes:
        if not key.startswith("/"):
            raise ValueError(f"the key {key!r} must begin with a slash")
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


def _prefix_end(prefix: bytes) -> bytes:
    """Returns the first key after all that begin with the prefix. The last byte can always be
    increased, because UTF-8 has no byte 255."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
