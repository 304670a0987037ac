"""Decides when the key set of a token issuer is fetched, and how long it stays in use.

`KeyRefresh` is a machine: the caller reports what happened and does what it is told. It knows times
and key ids only. The caller holds the key set, and fetches it from an address or a file.

- The keys are fetched at the start and every hour.
- A token with an unknown `kid` makes the broker fetch at once: the issuer may have a new key. A
  client can send such tokens before it is authenticated, so this happens once a minute at most,
  whatever the key ids are. A kid that was still unknown after a fetch is remembered, and causes no
  fetch for `kid_absent_ms`: a minute, because the issuer may publish the key a little later. Only
  16 are remembered, so a client cannot fill the memory.
- While fetches fail, the old keys stay in use, and the caller tries again after a pause that
  doubles. Keys older than `age_max_ms` are not used: the issuer may have revoked them. Then nobody
  can authenticate with a token.
- A fetch whose end was not reported within its timeout counts as failed.

All times are of a monotonic clock, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

KIDS_REMEMBERED_MAX: Final = 16
"""How many unknown key ids are remembered."""


@dataclass(frozen=True, slots=True)
class RefreshPolicy:
    """The times of `KeyRefresh`, in milliseconds. The defaults are Kafka's where it has them."""

    refresh_ms: int = 60 * 60 * 1000
    """The pause between two fetches that succeed."""
    unknown_kid_ms: int = 60 * 1000
    """The pause between two fetches because of unknown key ids."""
    kid_absent_ms: int = 60 * 1000
    """How long a kid that was not found causes no fetch."""
    age_max_ms: int = 24 * 60 * 60 * 1000
    """How long keys are used when no fetch succeeds."""
    retry_ms: int = 1000
    """The pause after the first fetch that fails. It doubles with each further one."""
    retry_max_ms: int = 60 * 1000
    """The longest pause after a fetch that fails."""
    fetch_timeout_ms: int = 5 * 1000
    """The deadline of one fetch. It is below that of an authentication, which waits for it."""

    def __post_init__(self) -> None:
        times = (self.refresh_ms, self.unknown_kid_ms, self.retry_ms, self.fetch_timeout_ms)
        if min(times) <= 0 or self.kid_absent_ms < 0:
            raise ValueError("the times of the key refresh must be more than 0: check the settings")
        if self.retry_max_ms < self.retry_ms:
            raise ValueError("the longest pause between retries must not be below the first one")
        if self.age_max_ms < self.refresh_ms:
            raise ValueError(
                f"keys are fetched every {self.refresh_ms} ms but used for {self.age_max_ms} ms "
                "only: use them at least until the next fetch"
            )


@dataclass(frozen=True, slots=True)
class FetchNow:
    """Fetch the key set now, and report `on_fetched` or `on_fetch_failed`.

    Without a report within the timeout the fetch counts as failed: call `on_timer` then.
    """

    timeout_ms: int
    """Give up after this time."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Call `on_timer` at this time."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class AwaitFetch:
    """A fetch is under way. Wait for its end, and do not start another."""


@dataclass(frozen=True, slots=True)
class RefuseKid:
    """Do not fetch. The token with this kid is not valid."""

    reason: str


class KeyRefresh:
    """The schedule of one issuer's key set. Call `on_timer` to begin."""

    def __init__(self, policy: RefreshPolicy | None = None) -> None:
        self._policy = policy or RefreshPolicy()
        self._fetch_began_ms: int | None = None
        """When the current fetch began; None if there is none."""
        self._fetched_at_ms: int | None = None
        self._failures = 0
        self._next_at_ms: int | None = None
        """When the next scheduled fetch is due; None before the first."""
        self._next_for_kid_ms: int | None = None
        """Before this time no unknown kid causes a fetch."""
        self._asked: set[str] = set()
        """The unknown kids that wait for the current fetch."""
        self._absent: dict[str, int] = {}
        """Kids that a fetch did not find, with the time until which they cause no fetch. The
        oldest comes first."""

    @property
    def remembered(self) -> int:
        """How many unknown kids are remembered, at most `KIDS_REMEMBERED_MAX`."""
        return len(self._absent) + len(self._asked)

    def keys_usable(self, now_ms: int) -> bool:
        """Whether the keys of the last fetch may still be used."""
        fetched = self._fetched_at_ms
        return fetched is not None and now_ms - fetched < self._policy.age_max_ms

    def on_timer(self, now_ms: int) -> FetchNow | WaitUntil | AwaitFetch:
        """Starts the scheduled fetch if it is due."""
        if self._is_fetching(now_ms):
            return AwaitFetch()
        if self._next_at_ms is not None and now_ms < self._next_at_ms:
            return WaitUntil(self._next_at_ms)
        return self._fetch(now_ms)

    def on_unknown_kid(self, kid: str, now_ms: int) -> FetchNow | AwaitFetch | RefuseKid:
        """Decides what a valid-looking token with an unknown key causes.

        After `FetchNow` and `AwaitFetch` the caller waits for the end of the fetch. Then it checks
        the token again.
        """
        if self._absent.get(kid, now_ms) > now_ms:
            return RefuseKid("the issuer has no key with this kid")
        if self._is_fetching(now_ms):
            self._ask(kid)
            return AwaitFetch()
        if self._failures and self._next_at_ms is not None and now_ms < self._next_at_ms:
            return RefuseKid("the keys of the issuer could not be fetched; the fetch is retried")
        if self._next_for_kid_ms is not None and now_ms < self._next_for_kid_ms:
            return RefuseKid("the keys of the issuer were fetched less than a minute ago")
        self._next_for_kid_ms = now_ms + self._policy.unknown_kid_ms
        self._ask(kid)
        return self._fetch(now_ms)

    def on_fetched(self, kids: Collection[str], now_ms: int) -> WaitUntil:
        """Records that a key set with these key ids is in use from now on."""
        self._fetch_began_ms = None
        self._failures = 0
        self._fetched_at_ms = now_ms
        for kid in self._asked:
            self._absent[kid] = now_ms + self._policy.kid_absent_ms
        self._asked.clear()
        for kid in [kid for kid in self._absent if kid in kids]:
            del self._absent[kid]
        self._next_at_ms = now_ms + self._policy.refresh_ms
        return WaitUntil(self._next_at_ms)

    def on_fetch_failed(self, now_ms: int, spread: float) -> WaitUntil:
        """Records that the fetch failed, and that the old keys stay in use.

        `spread` is a random number in [0, 1). It shortens the pause by up to a half, so that many
        brokers do not ask the issuer at the same moment. The report of a fetch that already counts
        as failed changes nothing.
        """
        if self._next_at_ms is not None and self._fetch_began_ms is None:
            return WaitUntil(self._next_at_ms)
        return self._fail(now_ms, spread)

    def _is_fetching(self, now_ms: int) -> bool:
        """Returns whether a fetch is under way, and records its failure if it took too long."""
        began = self._fetch_began_ms
        if began is not None and now_ms >= began + self._policy.fetch_timeout_ms:
            self._fail(began + self._policy.fetch_timeout_ms, 0)
        return self._fetch_began_ms is not None

    def _fail(self, now_ms: int, spread: float) -> WaitUntil:
        self._fetch_began_ms = None
        self._asked.clear()
        # 2**30 is beyond every bound: a larger power would only be a large number.
        doubled = self._policy.retry_ms << min(self._failures, 30)
        self._failures += 1
        pause = min(doubled, self._policy.retry_max_ms)
        self._next_at_ms = now_ms + max(1, pause - int(spread * pause / 2))
        return WaitUntil(self._next_at_ms)

    def _fetch(self, now_ms: int) -> FetchNow:
        self._fetch_began_ms = now_ms
        return FetchNow(self._policy.fetch_timeout_ms)

    def _ask(self, kid: str) -> None:
        """Remembers a kid that waits for the fetch. It replaces the oldest that was not found."""
        self._absent.pop(kid, None)
        if kid not in self._asked and self._absent and self.remembered >= KIDS_REMEMBERED_MAX:
            del self._absent[next(iter(self._absent))]
        if len(self._asked) < KIDS_REMEMBERED_MAX:
            self._asked.add(kid)
