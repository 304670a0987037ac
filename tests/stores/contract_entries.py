"""The part of `contract` about keys, revisions and commits."""

from __future__ import annotations

import asyncio

import pytest

from penstock.ports import Compare, Delete, KeyValue, MetadataStore, Put

from .store_bench import StoreBench, keys_of, put, revision_of, take


class Entries:
    """Keys, values and revisions."""

    def test_a_key_that_was_never_put_is_absent(self, bench: StoreBench) -> None:
        """Reading it returns None or an empty range, not an error."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            assert await one.get("/a") is None
            assert (await two.range("/"))[0] == []

        bench.run(scenario)

    def test_every_handle_sees_a_value_once_it_is_committed(self, bench: StoreBench) -> None:
        """A read that begins after the commit returned sees it, on any handle."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            for number in range(20):
                revision = await put(one, "/a", b"%d" % number)
                entry = await two.get("/a")
                assert entry == KeyValue("/a", b"%d" % number, start + 1, revision)

        bench.run(scenario)

    def test_creation_and_change_have_their_own_revisions(self, bench: StoreBench) -> None:
        """A later put keeps the create revision. After a delete the key is created again."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            await put(one, "/a", b"1")
            await put(one, "/a", b"2")
            assert await one.get("/a") == KeyValue("/a", b"2", start + 1, start + 2)
            await one.commit((), [Delete("/a")])
            assert await two.get("/a") is None
            await put(two, "/a", b"")
            assert await one.get("/a") == KeyValue("/a", b"", start + 4, start + 4)

        bench.run(scenario)

    def test_a_range_returns_the_keys_with_its_prefix_in_order(self, bench: StoreBench) -> None:
        """Keys next to the prefix are not included. Keys beyond ASCII sort by code point."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            keys = ["/a", "/a/", "/a/b", "/a/ü", "/a/\ud7ff", "/a/\U0001f600", "/a0", "/b", "/"]
            for key in reversed(keys):
                await put(one, key, key.encode())
            entries, revision = await two.range("/a/")
            assert [entry.key for entry in entries] == [
                "/a/",
                "/a/b",
                "/a/ü",
                "/a/\ud7ff",
                "/a/\U0001f600",
            ]
            assert [entry.value for entry in entries] == [e.key.encode() for e in entries]
            assert revision == start + len(keys)
            assert await keys_of(two, "/a/\ud7ff") == ["/a/\ud7ff"]
            assert await keys_of(two) == sorted(keys)

        bench.run(scenario)

    def test_a_prefix_that_ends_with_the_last_code_point_works(self, bench: StoreBench) -> None:
        """The highest code point has no successor, which the end of a range would need."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            for key in ("/a", "/a\U0010ffff", "/a\U0010ffffz", "/b", "/\U0010ffff"):
                await put(one, key, b"")
            assert await keys_of(two, "/a\U0010ffff") == ["/a\U0010ffff", "/a\U0010ffffz"]
            assert await keys_of(two, "/\U0010ffff") == ["/\U0010ffff"]

        bench.run(scenario)

    def test_a_range_is_consistent(self, bench: StoreBench) -> None:
        """Keys that always change together are never seen apart, and the revision is theirs."""

        async def change(store: MetadataStore) -> None:
            for number in range(40):
                await store.commit((), [Put("/a", b"%d" % number), Put("/z", b"%d" % number)])

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            await put(one, "/a", b"")
            await one.commit((), [Put("/a", b""), Put("/z", b"")])
            changing = asyncio.create_task(change(one))
            seen = await revision_of(two)
            while not changing.done():
                (a, z), revision = await two.range("/")
                assert (a.value, a.modify_revision) == (z.value, z.modify_revision)
                assert seen <= a.modify_revision == revision
                seen = revision
            await changing

        bench.run(scenario)

    def test_large_values_are_returned_whole(self, bench: StoreBench) -> None:
        """A topic with thousands of partitions is one value, and a range has many of them."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            value = bytes(range(256)) * 2_000
            for number in range(10):
                await put(one, f"/{number}", value)
            entries, revision = await two.range("/")
            assert [entry.value for entry in entries] == [value] * 10
            events = await take(two, "/", revision - 9, 10)
            assert [event.value for event in events] == [value] * 10

        bench.run(scenario)


class Commits:
    """All or nothing, under conditions."""

    def test_all_changes_of_a_commit_share_one_revision(self, bench: StoreBench) -> None:
        """However many keys it changes."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            changes = [Put(f"/{number:02}", b"%d" % number) for number in range(100)]
            committed = await one.commit((), changes)
            assert (committed.succeeded, committed.revision) == (True, start + 1)
            entries, revision = await two.range("/")
            assert [entry.key for entry in entries] == [change.key for change in changes]
            assert {entry.modify_revision for entry in entries} == {start + 1}
            assert revision == start + 1

        bench.run(scenario)

    def test_a_failed_compare_changes_nothing(self, bench: StoreBench) -> None:
        """One wrong revision among right ones makes the whole commit fail."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            revision = await put(one, "/a", b"1")
            wrong = [Compare("/a", revision), Compare("/b", revision)]
            committed = await two.commit(wrong, [Put("/a", b"2"), Put("/b", b"")])
            assert (committed.succeeded, committed.revision) == (False, revision)
            assert await one.get("/a") == KeyValue("/a", b"1", revision, revision)
            assert await one.get("/b") is None

        bench.run(scenario)

    def test_revision_zero_means_the_key_must_not_exist(self, bench: StoreBench) -> None:
        """If two commits create the same key, one succeeds."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            absent = [Compare("/a", 0)]
            outcomes = await asyncio.gather(
                one.commit(absent, [Put("/a", b"1")]), two.commit(absent, [Put("/a", b"2")])
            )
            assert sorted(outcome.succeeded for outcome in outcomes) == [False, True]
            winner = b"1" if outcomes[0].succeeded else b"2"
            entry = await two.get("/a")
            assert entry is not None
            assert entry.value == winner

        bench.run(scenario)

    def test_compares_may_name_keys_that_do_not_change(self, bench: StoreBench) -> None:
        """This is how a write is conditional on the controller's claim."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            claim = await put(one, "/controller", b"1")
            guard = [Compare("/controller", claim)]
            assert (await one.commit(guard, [Put("/topic", b"")])).succeeded
            await put(two, "/controller", b"2")
            assert not (await one.commit(guard, [Delete("/topic")])).succeeded
            assert await one.get("/topic") is not None

        bench.run(scenario)

    def test_a_commit_that_changes_nothing_uses_no_revision(self, bench: StoreBench) -> None:
        """Deleting a missing key, or only comparing, does not change the revision."""

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            revision = await put(one, "/a", b"")
            for changes in ([], [Delete("/b")]):
                committed = await one.commit([Compare("/a", revision)], changes)
                assert (committed.succeeded, committed.revision) == (True, revision)
            assert await revision_of(two) == revision

        bench.run(scenario)

    def test_a_commit_may_name_each_key_only_once(self, bench: StoreBench) -> None:
        """Two changes of one key in one revision would have no order. The commit is refused before
        it is sent."""

        async def scenario(one: MetadataStore, _two: MetadataStore) -> None:
            start = await revision_of(one)
            with pytest.raises(ValueError, match="/a"):
                await one.commit((), [Put("/a", b""), Delete("/a")])
            assert await revision_of(one) == start

        bench.run(scenario)

    def test_increments_from_two_handles_are_all_counted(self, bench: StoreBench) -> None:
        """Read, add one, compare and set: no increment is lost, however they interleave."""

        async def increment(store: MetadataStore, times: int) -> None:
            while times:
                entry = await store.get("/n")
                count, seen = (int(entry.value), entry.modify_revision) if entry else (0, 0)
                change = Put("/n", b"%d" % (count + 1))
                if (await store.commit([Compare("/n", seen)], [change])).succeeded:
                    times -= 1

        async def scenario(one: MetadataStore, two: MetadataStore) -> None:
            start = await revision_of(one)
            await asyncio.gather(*(increment(store, 10) for store in (one, two, one, two)))
            entry = await one.get("/n")
            assert entry is not None
            assert (entry.value, entry.modify_revision) == (b"40", start + 40)

        bench.run(scenario)
