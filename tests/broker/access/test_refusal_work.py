"""A refusal takes the same steps whether the thing exists or not, so its time tells nothing.

The test counts the function calls of the broker while it refuses a request, once for names that
exist and once for names that do not. No time is measured: machines are busy, steps are not.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from broker.access.clients import AUTHORIZER, Client, create
from broker.access.rights_table import Case
from broker.access.test_rights import (
    ALL_CASES,
    acls_of,
    present,
    users_of,
    versions_of,
    without,
)
from broker.harness import TIMEOUT_S, BrokerHarness, open_harness
from penstock.testing.slowness import patient
from penstock.wire.messages.base import Request

ATTEMPTS = 50
"""Other tasks of the broker run now and then, and their calls are counted too."""
_ROOT = str(Path(sys.modules["penstock"].__file__ or "").parent)


class Calls:
    """Counts calls of Penstock's functions while it is entered."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Calls:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            self.counts[name_of(frame.f_code)] += 1


def name_of(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(_ROOT)}:{code.co_qualname}"


async def steps(client: Client, request: Request, version: int) -> Counter[str]:
    with Calls() as calls:
        await client.exchange(request, version)
    return calls.counts


async def check(case: Case, harness: BrokerHarness) -> None:
    names, version = await present(harness), versions_of(case)[-1]
    refused = [user for user in users_of(case) if user.refusal is not None]
    await create(harness, acls_of(refused, names))
    for user in refused:
        client = Client(harness, user.principal)
        absent = without(names, user.missing)
        for _ in range(ATTEMPTS):
            there = await steps(client, case.make(names, version), version)
            missing = await steps(client, case.make(absent, version), version)
            if there == missing:
                break
        assert there == missing, user


SECRET_CASES = [case for case in ALL_CASES if not case.by_id and not case.hidden]


@pytest.mark.parametrize("case", SECRET_CASES, ids=lambda case: case.label.replace(" ", "-"))
def test_a_refusal_takes_the_same_steps_for_absent_and_forbidden(
    case: Case, tmp_path: Path
) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(patient(TIMEOUT_S)),
            open_harness(tmp_path, 1, AUTHORIZER) as harness,
        ):
            await check(case, harness)

    asyncio.run(run())
