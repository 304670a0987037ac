"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import completion
from penstock.cli.session import BOOTSTRAP_VARIABLE

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help="One or more brokers of the cluster.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
NoProgressBar = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]
TargetTopic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The topic to send to.", autocompletion=completion.topics),
]
OnlyTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        help="Only partitions of this topic. Repeatable.",
        autocompletion=completion.topics,
    ),
]
QueueTopic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The queue's topic.", autocompletion=completion.topics),
]
ShareGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="The share group. Default: the name of the topic.",
        autocompletion=completion.groups,
    ),
]
