"""ApiVersions, the first request of every client, byte for byte, and requests that are not
served.
"""

from __future__ import annotations

import struct

import pytest

from broker.harness import BrokerHarness, with_harness
from penstock.broker.handled_apis import CONSUMER_GROUP_APIS, HANDLED, SHARE_GROUP_APIS
from penstock.wire.api import SUPPORTED, ApiKey
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import ApiVersionsRequest, ApiVersionsResponse

HEADER = struct.Struct(">hhih")
BY_DEFAULT = frozenset({*HANDLED, *CONSUMER_GROUP_APIS, *SHARE_GROUP_APIS})


def frame(api_key: int, version: int, body: bytes = b"") -> bytes:
    """Returns a request without a client id. `body` is added as it is, valid in this version or
    not.
    """
    return HEADER.pack(api_key, version, 77, -1) + body


@with_harness
async def test_the_response_header_has_no_tagged_fields(harness: BrokerHarness) -> None:
    """The error code follows the correlation id directly, in flexible versions too."""
    for version in range(5):
        body = b"\0\2x\2" + b"1\0" if version >= 3 else b""
        answer = await harness.exchange(frame(ApiKey.API_VERSIONS, version, body))
        assert answer is not None
        assert struct.unpack_from(">ih", answer) == (77, 0)
        count = answer[6] - 1 if version >= 3 else struct.unpack_from(">i", answer, 6)[0]
        assert count == len(BY_DEFAULT)


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
@pytest.mark.parametrize("body", [b"", b"\0", b"\xff" * 40])
def test_an_unknown_version_is_answered_in_version_0(
    tmp_path: object, version: int, body: bytes
) -> None:
    """Whatever follows the header. The response has one entry, for ApiVersions itself, so that the
    client can retry with a lower version.
    """

    @with_harness
    async def run_case(harness: BrokerHarness) -> None:
        answer = await harness.exchange(frame(ApiKey.API_VERSIONS, version, body))
        assert answer is not None
        assert answer == struct.pack(">ihihhh", 77, ErrorCode.UNSUPPORTED_VERSION, 1, 18, 0, 4)

    run_case(tmp_path)  # type: ignore[arg-type]


@with_harness
async def test_version_ranges_work_for_old_and_new_clients(harness: BrokerHarness) -> None:
    """Produce is offered from version 0, because old librdkafka stops compressing otherwise. The
    ranges include the single versions that librdkafka before 2.11.1 looks for. APIs that need
    absent features are not offered.
    """
    request = ApiVersionsRequest("penstock", "1.0")
    ranges = [
        {
            each.api_key: (each.min_version, each.max_version)
            for each in (await harness.ask(request, version, ApiVersionsResponse)).api_keys
        }
        for version in range(5)
    ]
    assert all(each == ranges[0] for each in ranges)
    offered = ranges[0]
    assert set(offered) == {int(key) for key in BY_DEFAULT}
    assert offered[ApiKey.PRODUCE] == (0, 12)
    looked_for = {
        ApiKey.FIND_COORDINATOR: (0,),
        ApiKey.JOIN_GROUP: (0,),
        ApiKey.SYNC_GROUP: (0,),
        ApiKey.HEARTBEAT: (0,),
        ApiKey.LEAVE_GROUP: (0,),
        ApiKey.OFFSET_COMMIT: (2,),
        ApiKey.OFFSET_FETCH: (1,),
        ApiKey.LIST_OFFSETS: (1,),
        ApiKey.INIT_PRODUCER_ID: (0,),
        ApiKey.PRODUCE: (3, 7),
        ApiKey.FETCH: (4, 10),
    }
    for key, versions in looked_for.items():
        low, high = offered[key]
        assert all(low <= version <= high for version in versions), key
    assert offered[ApiKey.SHARE_FETCH] == (1, 2)
    assert not {83, 84, 85, 86, 87, 88, 89} & set(offered)


@with_harness
async def test_transaction_version_2_is_offered_as_a_feature(harness: BrokerHarness) -> None:
    """Together with the API versions that belong to it. Clients below ApiVersions version 4 cannot
    handle a lowest supported version of 0, so supported features are not sent to them.
    """
    for version in (3, 4):
        answer = await harness.ask(ApiVersionsRequest("x", "1"), version, ApiVersionsResponse)
        (final,) = answer.finalized_features
        level = (final.name, final.min_version_level, final.max_version_level)
        assert level == ("transaction.version", 2, 2)
        assert answer.finalized_features_epoch >= 0
        supported = [
            (each.name, each.min_version, each.max_version) for each in answer.supported_features
        ]
        assert supported == ([("transaction.version", 0, 2)] if version == 4 else [])
        offered = {each.api_key: each.max_version for each in answer.api_keys}
        belong = {
            ApiKey.PRODUCE: 12,
            ApiKey.END_TXN: 5,
            ApiKey.TXN_OFFSET_COMMIT: 5,
            ApiKey.ADD_PARTITIONS_TO_TXN: 5,
        }
        assert {key: offered[key] for key in belong} == belong


@with_harness
async def test_the_clients_software_name_and_version_must_be_valid(harness: BrokerHarness) -> None:
    """From version 3 on, because they appear in logs."""
    for version in (3, 4):
        for name, software, good in (
            ("librdkafka", "2.15.0", True),
            ("a.b-c", "1", True),
            ("a b", "1", False),
            ("-a", "1", False),
            ("a", "1.", False),
            ("", "", False),
            ("x\n", "1", False),
        ):
            request = ApiVersionsRequest(name, software)
            answer = await harness.ask(request, version, ApiVersionsResponse)
            code = ErrorCode.NONE if good else ErrorCode.INVALID_REQUEST
            assert (answer.error_code, bool(answer.api_keys)) == (code, good)


@with_harness
async def test_other_unsupported_requests_close_the_connection(harness: BrokerHarness) -> None:
    """The client could not read any response to an unknown API or version. This includes Produce
    below version 3, although that is offered.
    """
    for key, known in SUPPORTED.items():
        if key in BY_DEFAULT and key is not ApiKey.API_VERSIONS:
            for version in (known.serve_min - 1, known.max_version + 1):
                with pytest.raises(ProtocolError):
                    await harness.exchange(frame(key, version, bytes(60)))
    for api_key in (83, 88, 999, -1):
        with pytest.raises(ProtocolError):
            await harness.exchange(frame(api_key, 0, bytes(60)))
