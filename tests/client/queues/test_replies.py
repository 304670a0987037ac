"""What a client that asks hears when its queue is closed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.client.errors import Closed
from penstock.client.queues.replies import Replies
from penstock.runtime import SystemRandom


def test_a_client_that_asks_hears_that_its_queue_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`CancelledError` would end its task, which nobody has cancelled."""
    nothing: Any = None
    env = cast(Any, SimpleNamespace(random=SystemRandom()))
    replies = Replies(nothing, nothing, env, nothing, None)

    async def started() -> None:
        pass

    async def main() -> None:
        monkeypatch.setattr(replies, "_start", started)
        _, future = await replies.expect()
        asking = asyncio.create_task(replies.wait(future, 600.0))
        await asyncio.sleep(0)
        await replies.close()
        with pytest.raises(Closed, match="before the reply came"):
            await asking

    asyncio.run(main())
