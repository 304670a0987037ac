"""Takes a worker that has died out of the group of workers: `python -m
penstock.spark.deployments.worker_guard WORKER BOOTSTRAP GROUP`.

Without it, the group waits until the session of the dead worker times out (20 seconds), because its
drivers could still run. The guard knows that they do not. A worker starts it, and keeps its
standard input open. One JSON object per line:

    {"member": "..."}     the worker's id in the group from now on
    {"bye": true}         the worker has left the group by itself

The end of standard input without a goodbye means that the process of the worker has ended: nothing
else has the other end of the pipe. Then the guard

1. kills the sessions of all drivers of the worker, and looks again until it finds none. A driver
   and what it starts have the id of the worker in their environment;
2. has the worker leave the group, so that the others get its pipelines at once.

There is never a second owner:

- When the guard finds no driver, none can appear. The worker cannot start another one. A child of
  the worker that has not become a driver yet is not found, but has no pipeline either: the worker
  assigns one only after the driver's program has begun. It reads the end of its input and ends.
- The guard leaves with the id that the worker had last told. If the worker had got another id in
  the meantime, the coordinator does not know the old one, and nothing happens.
- A worker that is paused or cut off has not ended. A guard that is killed with the worker, or a
  machine that fails, does nothing. In all these cases the lease decides, as without a guard.

The guard is there for as long as the worker. So it imports the client only when it needs it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.spark.pipelines.process_session import kill_session, sessions_with

WORKER_VARIABLE: Final = "PENSTOCK_PIPELINE_WORKER"
"""The variable with the id of the worker, in the environment of its drivers."""
_PROC: Final = Path("/proc")
_AGAIN_S: Final = 0.02
_LEAVE_S: Final = 20.0
"""After this time the coordinator has removed the worker by itself."""
_PAUSE_S: Final = 0.2
_CALL_S: Final = 5.0
_LEAVE_MEMBERS_SINCE: Final = 3
"""The version of LeaveGroup that has a list of members."""


def is_possible() -> bool:
    """Whether the drivers of a dead worker can be found on this system."""
    return (_PROC / "self" / "environ").exists()


def member_at_the_end(lines: Iterable[str]) -> str | None:
    """Returns the id under which the worker was in the group when its input ended; None if it has
    said goodbye, or never was."""
    member = None
    for line in lines:
        with suppress(ValueError):  # Half a line, from a worker that was killed.
            told = json.loads(line)
            if told.get("bye"):
                return None
            member = told.get("member") or member
    return member


def sessions_of(worker: str) -> set[int]:
    """Returns the sessions with processes that have this worker in their environment."""
    return sessions_with(WORKER_VARIABLE, worker)


def end_drivers(worker: str) -> None:
    """Returns when no process of the worker's drivers runs."""
    while sessions := sessions_of(worker):
        for session in sessions:
            while kill_session(session):
                threading.Event().wait(_AGAIN_S)


async def leave(bootstrap: str, group: str, member: str) -> None:
    """Has the member leave the group. Gives up when its session has timed out."""
    from penstock.client.cluster import Cluster  # noqa: PLC0415 -- see the docstring
    from penstock.client.environment import default_environment  # noqa: PLC0415 -- the same
    from penstock.client.errors import ClientError  # noqa: PLC0415 -- the same
    from penstock.client.options import AdminOptions  # noqa: PLC0415 -- the same
    from penstock.wire.errors import ErrorCode, ProtocolError  # noqa: PLC0415 -- the same
    from penstock.wire.messages import LeaveGroupRequest, LeaveGroupResponse  # noqa: PLC0415 -- the same

    env = default_environment()
    config = AdminOptions.parse(bootstrap, {}).cluster_config()
    goodbye = LeaveGroupRequest.Member(member, None, "the process of the worker has ended")
    over = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(_LEAVE_S),
            Cluster(config, env.network, env.clock, env.random) as cluster,
        ):
            while True:
                with suppress(ClientError, ProtocolError):
                    connection = await cluster.coordinator(group, fresh=True)
                    request = LeaveGroupRequest(group, members=[goodbye])
                    if connection.version_of(LeaveGroupRequest) < _LEAVE_MEMBERS_SINCE:
                        request = LeaveGroupRequest(group, member)
                    answer = await connection.call(request, LeaveGroupResponse, timeout_s=_CALL_S)
                    codes = {answer.error_code, *(each.error_code for each in answer.members)}
                    if codes.issubset(over):
                        return
                await env.clock.sleep(_PAUSE_S)


def main(arguments: list[str]) -> int:
    worker, bootstrap, group = arguments
    # Signals for the worker may reach its whole process group. The end of the input ends the guard.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    member = member_at_the_end(sys.stdin)
    if member is not None:
        end_drivers(worker)
        asyncio.run(leave(bootstrap, group, member))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
