"""`penstock cluster replicate`: adds replicas to topics that were created with too few."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import completion
from penstock.cli.cluster_rebalance import (
    AtOnce,
    Pace,
    Throttle,
    Timeout,
    carry_out,
    ended_json,
    report_ended,
)
from penstock.cli.cluster_state import look
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import CommandFailed, count, emit, emit_json
from penstock.cli.session import DEFAULT_BOOTSTRAP, EXIT_REFUSED, connect, report, run
from penstock.client.admin.moves import Ended
from penstock.client.errors import BrokerError
from penstock.metadata.rebalance import Step
from penstock.metadata.replica_counts import TooFewBrokers, add_replicas

_HELP = """Give every partition of TOPIC at least N replicas.

Waits until the new replicas have caught up. Existing replicas and the preferred leader do not move.
Replicas are never removed. You can stop the command and run it again.

\b
Examples:
  penstock cluster replicate __consumer_offsets --replicas 3
  penstock cluster replicate orders users --replicas 2 --throttle 50000000
"""


def register(app: typer.Typer) -> None:
    app.command("replicate", help=_HELP)(replicate)


def replicate(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="Topic names.", autocompletion=completion.topics),
    ],
    *,
    replicas: Annotated[
        int, typer.Option("--replicas", "-r", min=1, metavar="N", help="Least number of replicas.")
    ],
    throttle: Throttle = None,
    at_once: AtOnce = None,
    timeout: Timeout = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    pace = Pace(throttle, at_once, timeout)

    async def main() -> tuple[list[Step], Ended]:
        async with connect(bootstrap) as admin:
            known = await admin.describe_topics(topics)
            report(each for each in known.values() if isinstance(each, BrokerError))
            found = await look(admin, sizes=True)
            try:
                steps = add_replicas(
                    found.racks, found.placed(), set(topics), replicas, found.cordoned
                )
            except TooFewBrokers as error:
                raise CommandFailed(str(error), EXIT_REFUSED) from error
            if not json and steps:
                emit(f"{count(len(steps), 'partition')} with fewer than {replicas} replicas")
            return steps, await carry_out(admin, steps, found, pace)

    steps, ended = run(main())
    if json:
        emit_json({"partitions": len(steps), **ended_json(ended)})
    elif steps:
        report_ended(ended)
    else:
        emit(f"nothing to do: every partition has {replicas} replicas or more")
    if not ended.is_whole:
        raise typer.Exit(EXIT_REFUSED)
