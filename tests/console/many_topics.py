"""Runs a console with ten thousand made-up topics and two hundred groups.

Run as a program, it prints `console URL` and ends with its standard input. Its snapshot of the
cluster is made up, the rest is real; creating that many topics on brokers would take minutes.
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from penstock.client.address import Address
from penstock.client.admin.groups import GroupListing
from penstock.client.admin.operations import BrokerInfo, ClusterInfo, PartitionInfo, TopicInfo
from penstock.client.environment import default_environment
from penstock.console.config import ConsoleConfig
from penstock.console.guard import Guard
from penstock.console.picture import GroupLag, Picture
from penstock.console.server import listen
from penstock.console.sessions import Sessions
from penstock.console.sign_in import SignIn
from penstock.console.uploads import Uploads
from penstock.console.web import Web
from penstock.console.workspace import Workspace
from penstock.runtime import SystemClock, Threads
from penstock.topic_partition import TopicPartition

TOPICS = 10_000
GROUPS = 200


def made_up() -> Picture:
    picture = Picture("localhost:1")
    brokers = tuple(BrokerInfo(each, Address("h", 9092 + each), None) for each in range(3))
    picture.on_brokers(SystemClock().wall_ms(), ClusterInfo("c", 0, brokers), frozenset())
    parts = tuple(PartitionInfo(each, each, 1, (0, 1, 2), (0, 1, 2), ()) for each in range(3))
    names = [f"topic-{number:05}" for number in range(TOPICS)]
    picture.on_topics([TopicInfo(name, "id", False, parts) for name in names])
    for number in range(GROUPS):
        listing = GroupListing(f"group-{number:03}", "Empty", "consumer", "classic")
        lag = picture.groups[listing.group] = GroupLag(listing)
        lag.add({TopicPartition(names[number], 0): number}, {})
    return picture


class MadeUp(Workspace):
    """Polls no cluster."""

    async def run(self) -> None:
        pass


async def main() -> None:
    env = default_environment()
    config = ConsoleConfig(bootstrap="localhost:1")
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    threads = Threads(1)
    space = MadeUp(config, env, threads, Uploads(threads), {})
    space.watch.picture = made_up()
    sessions = Sessions(env.clock, lambda _user, _login: space, needs_sign_in=False)
    guard = Guard(config, port, env.clock, env.random)
    web = Web(guard, sessions, SignIn(config, guard, sessions, None))
    server = uvicorn.Server(
        uvicorn.Config(web.app(), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    print(f"console http://127.0.0.1:{port}/", flush=True)
    async with sessions.running(), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve([listening]))
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving
    listening.close()
    threads.close()


if __name__ == "__main__":
    asyncio.run(main())
