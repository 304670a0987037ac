"""The members of an etcd cluster: which one to ask, how long to wait, when to ask another.

One member is the current one; calls and watches use it. If it fails or does not answer, the next
one in the list becomes current for all callers: watches on the old one are ended and begin again on
the new one. There is one gRPC channel per member, which connects and reconnects automatically.

`repeat` is for requests that may be made twice: it goes from member to member until one answers or
the time is up. `once` is for requests that may not. An idle connection may be dead without our
knowing. So unless the member has answered something within `trust_s`, `once` first sends it a
harmless request with `repeat`. After that there is one attempt, and unless etcd clearly refuses the
request, a failure ends as `OutcomeUnknown`.

If the address has a user, requests carry its token (`etcd_login`). A request whose token etcd does
not accept had no effect, so it is repeated with a new one, also by `once`: at once the first time,
and then after a pause, until its time is up.

Every request requires that its member has a leader, so a member that is cut off from the rest
reports an error instead of keeping a watch silent. Answers are checked: they must come from one
cluster, and its revision must not decrease, as it would if etcd were restored from a backup under
running brokers.

aetcd provides etcd's protocol (`aetcd.rpc`: messages and stubs over grpc.aio). Its client is not
used: it knows one host, has one time limit for everything, and ends every watch on a reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from aetcd import rpc

from penstock.ports import Clock, Random
from penstock.stores.errors import (
    OutcomeUnknown,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnreachable,
)
from penstock.stores.etcd_address import EtcdAddress
from penstock.stores.etcd_failures import LOGIN_DISABLED, Verdict, judge
from penstock.stores.etcd_login import METADATA, Login, Metadata

_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5
_SHORTEST_S: Final = 0.001
_CHANNEL_OPTIONS: Final = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # etcd closes connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """`request_timeout_s` limits every call except a watch. One member gets `attempt_timeout_s` of
    it before another one is asked."""

    request_timeout_s: float = 5.0
    attempt_timeout_s: float = 1.5
    trust_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("request_timeout_s", "attempt_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: set it to more than 0")
        if self.trust_s < 0:
            raise ValueError(f"trust_s is {self.trust_s}: set it to 0 or more")


class Member:
    """One etcd server: its channel, its watches, and when it last answered."""

    def __init__(self, endpoint: str, address: EtcdAddress, credentials: Any | None) -> None:
        self.endpoint = endpoint
        self.address = address
        if credentials is None:
            self.channel = rpc.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
        else:
            self.channel = rpc.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS)
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)
        self.answered_at_s: float | None = None
        self.watch_calls: set[Any] = set()


Ask = Callable[[Member, float, Metadata], Awaitable[Any]]
"""Sends a request to a member, with a timeout in seconds and metadata, and returns its response."""


class Members:
    """All members, of which one is current."""

    def __init__(
        self, address: EtcdAddress, clock: Clock, random: Random, config: EtcdConfig
    ) -> None:
        credentials = _credentials(address)
        self._address = address
        self._clock = clock
        self._config = config
        self._members = [Member(each, address, credentials) for each in address.endpoints]
        self.login = Login(address, clock)
        # Brokers begin with different members, so that the first one does not get all the load.
        self._position = random.below(len(self._members))
        self._cluster_id: int | None = None
        self._revision = 0
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = asyncio.Event()

    @property
    def current(self) -> Member:
        return self._members[self._position]

    @property
    def count(self) -> int:
        return len(self._members)

    def require_open(self) -> None:
        if self._closing.is_set():
            raise StoreClosed(f"the metadata store {self._address} was closed: open it again")

    def move_on(self, member: Member) -> None:
        """Switches to the next member after a failure, unless another caller has already done
        so."""
        member.answered_at_s = None
        if member is not self.current or len(self._members) == 1:
            return
        self._position = (self._position + 1) % len(self._members)
        for call in list(member.watch_calls):
            call.cancel()

    async def pause(self, failures: int) -> None:
        """Waits a little each time all members have failed. `close` ends the wait."""
        rounds, rest = divmod(failures, len(self._members))
        if rest == 0:
            try:
                async with asyncio.timeout(min(_PAUSE_S * 2 ** (rounds - 1), _PAUSE_MAX_S)):
                    await self._closing.wait()
            except TimeoutError:
                pass

    async def repeat(self, ask: Ask) -> Any:
        """Repeats the request until a member answers. Not for requests that must not be made
        twice."""
        self.require_open()
        self._begin()
        try:
            return (await self._repeat(ask, self._deadline()))[1]
        finally:
            self._end()

    async def once(self, ask: Ask) -> Any:
        """Sends the request to one member, once. It is repeated only if etcd guarantees that
        nothing was done."""
        self.require_open()
        self._begin()
        try:
            return await self._once(ask, self._deadline())
        finally:
            self._end()

    async def metadata(self) -> Metadata:
        """Returns the metadata of a watch. Logs in if there is no token."""
        self.require_open()
        self._begin()
        try:
            return await self._metadata(self._deadline())
        finally:
            self._end()

    async def close(self) -> None:
        """Closes the store. Calls in progress are answered or time out; watches end at once."""
        if self._closing.is_set():
            await self._idle.wait()
            return
        self._closing.set()
        for member in self._members:
            for call in list(member.watch_calls):
                call.cancel()
        await self._idle.wait()
        for member in self._members:
            await member.channel.close()

    async def _metadata(self, deadline_s: float) -> Metadata:
        async def authenticate(user: str, password: str) -> str | None:
            request = rpc.AuthenticateRequest(name=user, password=password)

            async def ask(member: Member, timeout_s: float, metadata: Metadata) -> Any:
                return await member.auth.Authenticate(request, timeout=timeout_s, metadata=metadata)

            try:
                _, response = await self._repeat(ask, deadline_s, is_login=True)
            except StoreUnavailable as error:
                if not says(error, LOGIN_DISABLED):
                    raise
                return None
            token: str = response.token
            return token

        return await self.login.metadata(authenticate)

    async def _repeat(
        self, ask: Ask, deadline_s: float, *, is_login: bool = False
    ) -> tuple[Member, Any]:
        """Returns the member that answered, and its response. A login needs no token."""
        failures = renewals = 0
        last: StoreError | None = None
        while deadline_s > self._clock.monotonic():
            self.require_open()
            metadata = METADATA if is_login else await self._metadata(deadline_s)
            member = self.current
            revision = self._revision
            left_s = max(deadline_s - self._clock.monotonic(), _SHORTEST_S)
            try:
                response = await ask(member, min(left_s, self._config.attempt_timeout_s), metadata)
            except rpc.AioRpcError as error:
                verdict = verdict_of(error, member)
                last = verdict.error
                if await self._has_renewed(verdict, metadata, renewals):
                    renewals += 1
                    continue
                if not verdict.try_others:
                    raise verdict.error from error
                self.move_on(member)
                failures += 1
                await self.pause(failures)
                continue
            self._check(member, response, revision)
            return member, response
        raise self._no_answer(last)

    async def _once(self, ask: Ask, deadline_s: float) -> Any:
        failures = renewals = 0
        last: StoreError | None = None
        while True:
            member = self.current
            if not self._is_trusted(member):
                member, _ = await self._repeat(self._ask_for_nothing, deadline_s)
            metadata = await self._metadata(deadline_s)
            revision = self._revision
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                raise self._no_answer(last)
            try:
                response = await ask(member, left_s, metadata)
            except rpc.AioRpcError as error:
                verdict = verdict_of(error, member)
                last = verdict.error
                if await self._has_renewed(verdict, metadata, renewals):
                    renewals += 1
                    continue
                if verdict.try_others:
                    self.move_on(member)
                if isinstance(verdict.error, StoreFull):
                    # etcd has answered, so the commit is over: a read shows whether it was carried
                    # out.
                    raise verdict.error from error
                if verdict.may_have_happened:
                    raise OutcomeUnknown(
                        f"{verdict.error}; it is unknown whether the commit was made: read the "
                        "keys to find out"
                    ) from error
                if not verdict.try_others:
                    raise verdict.error from error
                failures += 1
                await self.pause(failures)
                continue
            self._check(member, response, revision)
            return response

    async def _has_renewed(self, verdict: Verdict, used: Metadata, renewals: int) -> bool:
        """Returns whether to repeat a request, because it failed for its token only."""
        if not verdict.token_invalid or not self.login.forget(used):
            return False
        if renewals:
            await self.pause(renewals * self.count)
        return True

    async def _ask_for_nothing(self, member: Member, timeout_s: float, metadata: Metadata) -> Any:
        # A key of the namespace: the user may have no right to read others.
        key = f"{self._address.namespace}/".encode()
        request = rpc.RangeRequest(key=key, count_only=True)
        return await member.kv.Range(request, timeout=timeout_s, metadata=metadata)

    def _is_trusted(self, member: Member) -> bool:
        answered_at_s = member.answered_at_s
        return (
            answered_at_s is not None
            and self._clock.monotonic() - answered_at_s <= self._config.trust_s
        )

    def _check(self, member: Member, response: Any, revision_before: int) -> None:
        header = response.header
        if self._cluster_id is None:
            self._cluster_id = header.cluster_id
        elif self._cluster_id != header.cluster_id:
            raise StoreCorrupt(
                f"{member.endpoint} belongs to a different etcd cluster than the other members "
                f"of {self._address}: list the members of one cluster only, then start again"
            )
        # Answers about leases carry the member's own revision, which may be behind.
        if isinstance(response, rpc.RangeResponse | rpc.TxnResponse):
            if header.revision < revision_before:
                raise StoreCorrupt(
                    f"etcd at {member.endpoint} is at revision {header.revision}, but was at "
                    f"{revision_before} before: it was restored from a backup, or it lost its "
                    "disk; stop all brokers of the cluster, then start them again"
                )
            self._revision = max(self._revision, header.revision)
        member.answered_at_s = self._clock.monotonic()

    def _no_answer(self, last: StoreError | None) -> StoreUnreachable:
        return StoreUnreachable(
            f"{self._address} did not answer within {self._config.request_timeout_s} s, and "
            f"nothing was changed{f' ({last})' if last else ''}: check that a majority of its "
            "members is running and can be reached from this broker"
        )

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._config.request_timeout_s

    def _begin(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()


def verdict_of(error: Any, member: Member) -> Verdict:
    return judge(error.code().name, error.details() or "", member.endpoint, member.address)


def says(error: BaseException, details: str) -> bool:
    """Returns whether an error of etcd that begins with these details is the cause."""
    cause = error.__cause__
    return isinstance(cause, rpc.AioRpcError) and (cause.details() or "").startswith(details)


def _credentials(address: EtcdAddress) -> Any | None:
    if not address.ca:
        return None
    ca = _contents(address.ca)
    if not address.cert:
        return grpc.ssl_channel_credentials(root_certificates=ca)
    return grpc.ssl_channel_credentials(
        root_certificates=ca,
        private_key=_contents(address.key),
        certificate_chain=_contents(address.cert),
    )


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise StoreUnavailable(
            f"cannot read {path}, which is configured for the connection to etcd: {error.strerror}"
        ) from error
