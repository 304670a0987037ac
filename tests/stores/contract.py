"""The contract that every metadata store must keep, whatever its implementation.

A store's tests derive from `StoreContract` and supply a `bench`: one shared store, any number of
handles on it, and control of the time by which leases expire. Two handles stand for two processes.
A store may have a history when a test begins, so revisions are counted from `revision_of(store)`.
During a test no other client uses it. Keys begin with a slash.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.ports import Compare, Delete, KeyValue, MetadataStore, Put, WatchEvent
from penstock.stores.errors import LeaseNotFound, RevisionNotKept, StoreClosed

from .contract_entries import Commits, Entries
from .store_bench import StoreBench, keys_of, put, revision_of, take


class Leases:
    """Keys that are deleted when their lease ends."""

    def test_keys_are_deleted_when_their_lease_expires(self, bench: StoreBench) -> None:
        """Another handle's watch reports it, all keys in one revision. Other keys stay."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            lease = await one.grant_lease(2.0 * bench.second_s)
            await put(one, "/b", b"", lease)
            await put(one, "/a", b"", lease)
            revision = await put(one, "/c", b"")
            watching = asyncio.create_task(take(two, "/", revision + 1, 2))
            await bench.advance(2.5 * bench.second_s)
            assert await watching == [
                WatchEvent("/a", None, revision + 1),
                WatchEvent("/b", None, revision + 1),
            ]
            assert await keys_of(two) == ["/c"]
            assert not await one.keep_alive(lease)

        bench.run(scenario)

    def test_keep_alive_prolongs_a_lease(self, bench: StoreBench) -> None:
        """Renewed in time it lasts longer than its time to live. Any handle may renew it, since a
        lease belongs to the store and not to the handle that granted it."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            second = bench.second_s
            lease = await one.grant_lease(3.0 * second)
            await put(one, "/a", b"", lease)
            for store in (one, two, two):
                await bench.advance(1.4 * second)
                assert await store.keep_alive(lease)
            entry = await two.get("/a")
            assert entry is not None
            assert entry.lease == lease

        bench.run(scenario)

    def test_a_commit_does_not_see_keys_of_an_expired_lease(self, bench: StoreBench) -> None:
        """A commit that is conditional on an expired claim fails, and the claim is free, even if
        there was no watch."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            claim = await put(one, "/controller", b"1", await one.grant_lease(bench.second_s))
            await bench.advance(2.2 * bench.second_s)
            late = await one.commit([Compare("/controller", claim)], [Put("/topic", b"")])
            assert not late.succeeded
            assert await two.commit([Compare("/controller", 0)], [Put("/controller", b"2")])
            assert await keys_of(one) == ["/controller"]

        bench.run(scenario)

    def test_a_carried_lease_ends_when_it_is_revoked(self, bench: StoreBench) -> None:
        """`carry_s` asks the store to renew the lease while the event loop is busy. It changes
        nothing else."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            lease = await one.grant_lease(60.0)
            await put(one, "/a", b"", lease)
            assert await one.keep_alive(lease, carry_s=30.0)
            assert await keys_of(two) == ["/a"]
            await one.revoke_lease(lease)
            assert await keys_of(two) == []
            assert not await one.keep_alive(lease, carry_s=30.0)
            assert one.full is None

        bench.run(scenario)

    def test_revoking_a_lease_deletes_its_keys_at_once(self, bench: StoreBench) -> None:
        """As a clean shutdown does. Revoking it twice is not an error."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            lease = await one.grant_lease(60.0)
            await put(one, "/a", b"", lease)
            await put(one, "/b", b"")
            await one.revoke_lease(lease)
            await two.revoke_lease(lease)
            assert await keys_of(two) == ["/b"]
            assert not await one.keep_alive(lease)

        bench.run(scenario)

    def test_a_key_is_deleted_only_with_its_present_lease(self, bench: StoreBench) -> None:
        """If it is put again under another lease or none, it survives the end of the first one."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            first, second = await one.grant_lease(60.0), await two.grant_lease(60.0)
            for key in ("/a", "/b"):
                await put(one, key, b"", first)
            await put(two, "/a", b"", second)
            await put(two, "/b", b"")
            await one.revoke_lease(first)
            assert await keys_of(one) == ["/a", "/b"]
            await two.revoke_lease(second)
            assert await keys_of(one) == ["/b"]

        bench.run(scenario)

    def test_nothing_can_be_put_under_an_expired_lease(self, bench: StoreBench) -> None:
        """The whole commit is refused."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            lease = await one.grant_lease(bench.second_s)
            await bench.advance(2.2 * bench.second_s)
            with pytest.raises(LeaseNotFound):
                await two.commit((), [Put("/a", b""), Put("/b", b"", lease)])
            assert await keys_of(one) == []

        bench.run(scenario)

    def test_an_unknown_lease_cannot_be_renewed(self, bench: StoreBench) -> None:
        """`keep_alive` returns False. Revoking it is not an error."""

        async def scenario(one: MetadataStore, _two: MetadataStore) -> None:
            assert not await one.keep_alive(987_654_321)
            await one.revoke_lease(987_654_321)

        bench.run(scenario)

    def test_a_lease_must_have_a_positive_time_to_live(self, bench: StoreBench) -> None:
        async def scenario(one: MetadataStore, _two: MetadataStore) -> None:
            for ttl_s in (0.0, -1.0):
                with pytest.raises(ValueError, match="lease"):
                    await one.grant_lease(ttl_s)

        bench.run(scenario)

    def test_leases_have_different_ids(self, bench: StoreBench) -> None:
        """Also from the ids of leases that ended long ago."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            leases = []
            for store in (one, two, one):
                leases.append(await store.grant_lease(60.0))
                await store.revoke_lease(leases[-1])
            assert len(set(leases)) == 3
            assert 0 not in leases

        bench.run(scenario)


class Watches:
    """Every change, in order, without gaps."""

    def test_a_watch_begins_with_past_changes(self, bench: StoreBench) -> None:
        """A watch from the revision after a range misses nothing between the two."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            await put(one, "/a", b"1")
            _, revision = await two.range("/")
            await put(one, "/b", b"2")
            await one.commit((), [Delete("/a")])
            assert await take(two, "/", revision + 1, 2) == [
                WatchEvent("/b", b"2", revision + 1),
                WatchEvent("/a", None, revision + 2),
            ]

        bench.run(scenario)

    def test_a_watch_reports_later_changes(self, bench: StoreBench) -> None:
        """Those of its own handle and those of another."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            watches = [asyncio.create_task(take(store, "/", start + 1, 2)) for store in (one, two)]
            await asyncio.sleep(0)
            await put(one, "/a", b"1")
            await put(two, "/b", b"2")
            expected = [WatchEvent("/a", b"1", start + 1), WatchEvent("/b", b"2", start + 2)]
            assert await asyncio.gather(*watches) == [expected, expected]

        bench.run(scenario)

    def test_a_watch_sees_only_its_prefix(self, bench: StoreBench) -> None:
        """It continues past revisions that do not concern it."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            await one.commit((), [Put("/b/1", b""), Put("/a/1", b""), Put("/a", b"")])
            await put(one, "/b/2", b"")
            await put(one, "/a/2", b"")
            events = await take(two, "/a/", start + 1, 2)
            assert [(event.key, event.revision - start) for event in events] == [
                ("/a/1", 1),
                ("/a/2", 3),
            ]

        bench.run(scenario)

    def test_the_changes_of_a_commit_arrive_together(self, bench: StoreBench) -> None:
        """No batch ends in the middle of a revision."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            for number in range(30):
                await one.commit((), [Put(f"/{key}", b"%d" % number) for key in "abc"])
            seen = 0
            async for batch in two.watch("/", start + 1):
                revisions = [event.revision for event in batch]
                assert revisions == sorted(revisions)
                assert all(revisions.count(revision) == 3 for revision in revisions)
                seen += len(batch)
                if seen == 90:
                    break

        bench.run(scenario)

    def test_a_watch_may_begin_in_the_future(self, bench: StoreBench) -> None:
        """It reports nothing until that revision."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            watching = asyncio.create_task(take(two, "/", start + 3, 1))
            for number in range(3):
                await put(one, "/a", b"%d" % number)
            assert await watching == [WatchEvent("/a", b"2", start + 3)]

        bench.run(scenario)

    def test_an_abandoned_watch_does_not_affect_its_handle(self, bench: StoreBench) -> None:
        """Left in the middle, or canceled while it waits. Other watches on the handle continue."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            other = asyncio.create_task(take(one, "/", start + 1, 3))
            for number in range(2):
                await put(two, "/a", b"%d" % number)
            left = await take(one, "/", start + 1, 1)
            assert left[0] == WatchEvent("/a", b"0", start + 1)
            waiting = asyncio.create_task(take(one, "/", start + 10, 1))
            await one.get("/a")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await put(two, "/a", b"2")
            assert [event.value for event in await other] == [b"0", b"1", b"2"]
            assert await one.keep_alive(await one.grant_lease(60.0))

        bench.run(scenario)

    def test_a_watch_of_pruned_changes_is_refused(self, bench: StoreBench) -> None:
        """It must not begin with a gap. A watch from the present revision always works."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            first = await put(one, "/a", b"")
            await bench.forget_history(one)
            with pytest.raises(RevisionNotKept):
                await take(two, "/", first, 1)
            _, revision = await two.range("/")
            later = await put(one, "/b", b"")
            assert await take(two, "/b", revision + 1, 1) == [WatchEvent("/b", b"", later)]

        bench.run(scenario)


class Closing:
    def test_a_closed_handle_raises_store_closed(self, bench: StoreBench) -> None:
        """Calls and watches raise it, closing again does not, other handles continue."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            watching = asyncio.create_task(take(one, "/", start + 1, 1))
            await one.range("/")
            await one.close()
            await one.close()
            with pytest.raises(StoreClosed):
                await watching
            with pytest.raises(StoreClosed):
                await one.get("/a")
            with pytest.raises(StoreClosed):
                await put(one, "/a", b"")
            assert await put(two, "/a", b"") == start + 1

        bench.run(scenario)


_KEYS = st.sampled_from(["/a", "/a/1", "/a/2", "/b"])
_CHANGES = st.one_of(st.builds(Put, _KEYS, st.binary(max_size=3)), st.builds(Delete, _KEYS))
_STEPS = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(_KEYS, st.sampled_from(["right", "zero", "old"])), max_size=2),
        st.lists(_CHANGES, max_size=3, unique_by=lambda change: change.key),
    ),
    max_size=12,
)


class Model:
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    @given(steps=_STEPS)
    def test_the_store_behaves_as_a_dictionary_with_revisions(
        self, bench: StoreBench, steps: list[Any]
    ) -> None:
        """Any commits through two handles have the model's outcomes, and a watch from the start
        replays to the same state."""
        model: dict[str, KeyValue] = {}

        def apply(compares: list[Compare], changes: list[Put | Delete], revision: int) -> bool:
            for compare in compares:
                entry = model.get(compare.key)
                if (entry.modify_revision if entry else 0) != compare.modify_revision:
                    return False
            for change in changes:
                before = model.pop(change.key, None)
                if isinstance(change, Put):
                    created = before.create_revision if before else revision + 1
                    entry = KeyValue(change.key, change.value, created, revision + 1)
                    model[change.key] = entry
            return True

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = revision = await revision_of(one)
            changed = 0
            for use_first, conditions, changes in steps:
                compares = []
                for key, kind in conditions:
                    entry = model.get(key)
                    right = entry.modify_revision if entry else 0
                    wanted = {"right": right, "zero": 0, "old": start + 1}[kind]
                    compares.append(Compare(key, wanted))
                touched = sum(isinstance(c, Put) or c.key in model for c in changes)
                succeeded = apply(compares, changes, revision)
                if succeeded and touched:
                    revision += 1
                    changed += touched
                committed = await (one if use_first else two).commit(compares, changes)
                assert (committed.succeeded, committed.revision) == (succeeded, revision)
            for store in (one, two):
                entries, at = await store.range("/a/")
                assert at == revision
                assert entries == [model[key] for key in sorted(model) if key.startswith("/a/")]
            replayed: dict[str, bytes] = {}
            for event in await take(two, "/", start + 1, changed) if changed else []:
                replayed.pop(event.key, None)
                if event.value is not None:
                    replayed[event.key] = event.value
            assert replayed == {key: entry.value for key, entry in model.items()}

        fresh = bench.fresh()
        try:
            fresh.run(scenario)
        finally:
            fresh.close()


class StoreContract(Entries, Commits, Leases, Watches, Closing, Model):
    """Derive from this, name the class Test..., and supply the fixture `bench`."""
