"""Errors of a server: each becomes the right one of ours, and no request is repeated unasked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from penstock.tier.chain import find
from penstock.tier.commit import claim
from penstock.tier.driver import Driver, Patience
from penstock.tier.errors import (
    NotFound,
    OutcomeUnknown,
    Refused,
    StoreError,
    Throttled,
)
from penstock.tier.object_store import ObjectStore
from penstock.tier.opening import open_store

from .object_samples import OWNER
from .s3_stub import BUCKET, S3Stub
from .store_bench import new_env, s3_options

Call = Callable[[ObjectStore], Awaitable[object]]
CALLS: dict[str, Call] = {
    "create": lambda store: store.create("a/b", [b"x"]),
    "put": lambda store: store.put("a/b", [b"x"]),
    "delete": lambda store: store.delete("a/b"),
    "get": lambda store: store.get("a/b"),
    "get_range": lambda store: store.get_range("a/b", 0, 1),
    "get_ranges": lambda store: store.get_ranges("a/b", [(0, 1)]),
    "head": lambda store: store.head("a/b"),
    "list": lambda store: store.list_objects("a/"),
}
WRITES = ("create", "put", "delete")


def outcome(stub: S3Stub, call: Call) -> StoreError | None:
    """Returns the error of one call."""

    async def main() -> StoreError | None:
        await stub.start()
        store = open_store(f"s3://{BUCKET}", new_env(), s3_options(stub.port))
        try:
            await call(store)
        except StoreError as error:
            return error
        finally:
            await stub.stop()
        return None

    return asyncio.run(main())


@pytest.mark.parametrize("status", [500, 502, 503, 429])
@pytest.mark.parametrize("name", CALLS)
def test_a_failed_write_is_unknown_and_a_failed_read_may_be_tried_again(
    name: str, status: int
) -> None:
    """A proxy may answer 503 after the server has carried the request out."""
    stub = S3Stub(status=status)
    error = outcome(stub, CALLS[name])
    assert type(error) is (OutcomeUnknown if name in WRITES else Throttled)
    assert len(stub.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 405])
@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_of_the_server_is_final(name: str, status: int) -> None:
    stub = S3Stub(status=status)
    assert type(outcome(stub, CALLS[name])) is Refused
    assert len(stub.requests) == 1


@pytest.mark.parametrize("code", ["RequestTimeout", "BadDigest", "XAmzContentSHA256Mismatch"])
@pytest.mark.parametrize("name", ["create", "put", "get", "list"])
def test_what_the_network_has_damaged_or_delayed_may_be_tried_again(name: str, code: str) -> None:
    """S3 answers 400, and means this one request."""
    error = outcome(S3Stub(status=400, code=code), CALLS[name])
    assert type(error) is (OutcomeUnknown if name in WRITES else Throttled)


@pytest.mark.parametrize("name", CALLS)
def test_a_server_that_cannot_be_reached_has_changed_nothing(name: str) -> None:
    async def main() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        store = open_store(f"s3://{BUCKET}", new_env(), s3_options(port))
        with pytest.raises(Throttled):
            await CALLS[name](store)

    asyncio.run(main())


@pytest.mark.parametrize("name", WRITES)
def test_a_write_without_an_answer_is_unknown_and_is_not_repeated(name: str) -> None:
    stub = S3Stub(drops_answers=True)
    assert type(outcome(stub, CALLS[name])) is OutcomeUnknown
    assert len(stub.requests) == 1
    assert ("a/b" in stub.objects) == (name != "delete")


@pytest.mark.parametrize("name", ["get", "get_range", "get_ranges", "head"])
def test_a_missing_object_is_not_found(name: str) -> None:
    assert type(outcome(S3Stub(), CALLS[name])) is NotFound


def test_a_server_that_ignores_ranges_is_not_believed() -> None:
    stub = S3Stub(ignores_ranges=True, objects={"a/b": b"0123456789"})
    error = outcome(stub, lambda store: store.get_range("a/b", 2, 3))
    assert isinstance(error, StoreError)


def test_a_create_is_one_request_with_a_checksum() -> None:
    """Not a multipart upload, which could not be created exclusively."""
    stub = S3Stub()
    assert outcome(stub, lambda store: store.create("a/b", [b"x" * (1 << 20)] * 12)) is None
    (request,) = stub.requests
    assert request.is_create
    assert "x-amz-checksum-sha256" in request.headers
    assert len(stub.objects["a/b"]) == 12 << 20


@pytest.mark.parametrize(
    "fault", [{"drops_answers": True}, {"write_status": 500}, {"write_status": 409}]
)
def test_a_claim_survives_lost_answers_of_a_real_client(fault: dict[str, int]) -> None:
    """Each write is carried out, and its answer is lost or wrong."""

    async def main() -> None:
        env = new_env()
        stub = S3Stub()
        await stub.start()
        store = open_store(f"s3://{BUCKET}", env, s3_options(stub.port))
        driver = Driver(store, env.clock, env.random, Patience(first_wait_s=0.001))
        for name, value in fault.items():
            setattr(stub, name, value)
        view = await driver.run(find("shared/0"))
        view, _ = await driver.run(claim(view, OWNER, 1, 0, env.random.bytes))
        assert view.seq == 1
        assert await driver.run(find("shared/0")) == view
        await stub.stop()

    asyncio.run(main())
