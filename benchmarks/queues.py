"""How many jobs a second pass through a queue, and how long does a job take under load?

Penstock's queues (share groups) beside RabbitMQ's quorum and classic queues and NATS JetStream work
queues, all on this machine, all durable, each with its Python client. A job is 100 bytes.

- one_by_one: a sender puts a job and waits for the confirmation before the next; then a worker
  takes a job and acknowledges it before the next.
- together: the sender waits for a hundred confirmations at once; the worker takes up to a hundred
  jobs that are here and acknowledges them together.
- both are measured again with eight senders or workers, each a connection of its own.
- load: jobs are put at a steady rate and four workers take and acknowledge them. The time of a job
  is counted from before it is put until a worker has it.

A figure is the number of jobs in a second. Acknowledgements are not confirmed one by one by any of
them; the clock stops when the server has them all. The systems take turns in every round; the
figure of a system is the median of its rounds, and `ratio` is ours divided by theirs. `server_us`
is the processor time of the server for one job that was put, taken and acknowledged.

What is not installed is left out, and the result says so. Debian has rabbitmq-server and
nats-server; the Python clients are aio-pika and nats-py. Run it from the project's root on a quiet
machine: `python -m benchmarks.queues --json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from benchmarks.queue_servers import Link, Server, servers

JOB: Final = b"j" * 100
GROUP: Final = 100
SEVERAL: Final = 8
LOAD_WORKERS: Final = 4
KNOWN: Final = ("penstock", "rabbitmq-quorum", "rabbitmq-classic", "nats")
_DEADLINE_S: Final = 300.0

Figures = dict[str, float]


async def put_jobs(links: list[Link], count: int, group: int) -> float:
    """Puts jobs over several links, and returns the number in a second."""

    async def put(link: Link, share: int) -> None:
        if group == 1:
            for _ in range(share):
                await link.put(JOB)
        else:
            for _ in range(share // group):
                await link.put_all([JOB] * group)

    started = time.perf_counter()
    await asyncio.gather(*(put(link, count // len(links)) for link in links))
    return count / (time.perf_counter() - started)


async def take_jobs(links: list[Link], count: int, group: int) -> float:
    """Takes and acknowledges jobs over several links, and returns the number in a second.

    The clock starts when every link has its first jobs: joining is not measured.
    """
    held = [await link.take(group) for link in links]
    taken = 0
    finished = asyncio.Event()

    async def take(link: Link, jobs: list[tuple[bytes, Any]]) -> None:
        nonlocal taken
        while True:
            await link.done([ticket for _, ticket in jobs])
            taken += len(jobs)
            if taken >= count:
                finished.set()
            jobs = await link.take(group)

    started = time.perf_counter()
    workers = [asyncio.create_task(take(*each)) for each in zip(links, held, strict=True)]
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await _first(finished, workers)
        for link in links:
            await link.settle()
        return count / (time.perf_counter() - started)
    finally:
        await _cancel(workers)


async def measure(server: Server, queue: str, several: int, count: int, group: int) -> Figures:
    """Puts jobs, then takes them: by this number of links, this many jobs at once."""
    senders = [await server.link(queue, takes=False) for _ in range(several)]
    before = server.cpu_s()
    put = await put_jobs(senders, count, group)
    for link in senders:
        await link.close()
    workers = [await server.link(queue, takes=True) for _ in range(several)]
    take = await take_jobs(workers, count, group)
    used = server.cpu_s() - before
    for link in workers:
        await link.close()
    return {
        "put": put,
        "take": take,
        "both": 1 / (1 / put + 1 / take),
        "server_us": used / count * 1e6,
    }


async def load(server: Server, queue: str, rate: float, seconds: float) -> Figures:
    """Puts jobs at a steady rate, and returns the times until workers have them, in ms."""
    sender = await server.link(queue, takes=False)
    links = [await server.link(queue, takes=True) for _ in range(LOAD_WORKERS)]
    # Every worker has taken a job before the load begins: joining is not measured.
    taking = [asyncio.create_task(link.take(1)) for link in links]
    while not all(task.done() for task in taking):
        await sender.put(b"0 " + JOB)
        await asyncio.sleep(0.05)
    times: list[float] = []
    count = int(rate * seconds)
    finished = asyncio.Event()

    async def work(link: Link, jobs: list[tuple[bytes, Any]]) -> None:
        while True:
            now = time.perf_counter()
            await link.done([ticket for _, ticket in jobs])
            times.extend(now - at for job, _ in jobs if (at := float(job.split()[0])))
            if len(times) >= count:
                finished.set()
            jobs = await link.take(1)

    async def put(due: float) -> None:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        await sender.put(b"%.6f %s" % (time.perf_counter(), JOB[:80]))

    workers = [
        asyncio.create_task(work(link, task.result()))
        for link, task in zip(links, taking, strict=True)
    ]
    start = time.perf_counter() + 0.5
    try:
        async with asyncio.timeout(seconds + _DEADLINE_S), asyncio.TaskGroup() as tasks:
            for number in range(count):
                due = start + number / rate
                tasks.create_task(put(due))
                if due - time.perf_counter() > 0.5:
                    await asyncio.sleep(0.25)
        async with asyncio.timeout(_DEADLINE_S):
            await _first(finished, workers)
    finally:
        await _cancel(workers)
        for link in (sender, *links):
            await link.close()
    ordered = sorted(times)
    return {
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
        "max_ms": ordered[-1] * 1e3,
    }


async def _first(finished: asyncio.Event, workers: list[asyncio.Task[None]]) -> None:
    """Waits until the work is finished. Raises what a worker raises."""
    waiting = asyncio.create_task(finished.wait())
    done, _ = await asyncio.wait([waiting, *workers], return_when=asyncio.FIRST_COMPLETED)
    if waiting not in done:
        waiting.cancel()
        for worker in done:
            worker.result()


async def _cancel(workers: list[asyncio.Task[None]]) -> None:
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


def scenarios(
    options: argparse.Namespace,
) -> dict[str, Callable[[Server, str], Coroutine[Any, Any, Figures]]]:
    jobs = options.jobs
    many = jobs * 5 // GROUP * GROUP
    return {
        "one_by_one": lambda server, queue: measure(server, queue, 1, jobs, 1),
        "together": lambda server, queue: measure(server, queue, 1, many, GROUP),
        f"one_by_one_x{SEVERAL}": lambda server, queue: measure(
            server, queue, SEVERAL, jobs // SEVERAL * SEVERAL, 1
        ),
        f"together_x{SEVERAL}": lambda server, queue: measure(
            server, queue, SEVERAL, max(many // (SEVERAL * GROUP), 1) * SEVERAL * GROUP, GROUP
        ),
        "load": lambda server, queue: load(server, queue, options.rate, options.seconds),
    }


def medians(rounds: list[Figures]) -> Figures:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def run(options: argparse.Namespace) -> dict[str, Any]:
    made = {name: make for name, make in servers().items() if name in options.only}
    results: dict[str, dict[str, Figures]] = {name: {} for name in made}
    started: dict[str, Server] = {}
    try:
        for name, make in made.items():
            started[name] = make()
            started[name].start()
        for scenario, measure_one in scenarios(options).items():
            if options.scenario and scenario not in options.scenario:
                continue
            rounds: dict[str, list[Figures]] = {name: [] for name in made}
            for number in range(options.rounds + 1):  # the first is warm-up
                for name, server in started.items():
                    queue = f"{scenario}-{number}"
                    figures = asyncio.run(measure_one(server, queue))
                    if number or options.smoke:
                        rounds[name].append(figures)
            for name in made:
                results[name][scenario] = medians(rounds[name])
                shown = {key: round(value, 1) for key, value in results[name][scenario].items()}
                print(f"{scenario:16} {name:17} {shown}", file=sys.stderr, flush=True)
    finally:
        for server in started.values():
            server.stop()
    return {
        "job_bytes": len(JOB),
        "load_rate": options.rate,
        "left_out": [name for name in KNOWN if name not in made],
        "results": results,
        "ratio": ratios(results),
    }


def ratios(results: dict[str, dict[str, Figures]]) -> dict[str, dict[str, float]]:
    """Returns our figure divided by theirs: more is better but for times under load."""
    ours = results.get("penstock", {})
    return {
        name: {
            scenario: round(ours[scenario][key] / figures[key], 2)
            for scenario, figures in theirs.items()
            for key in ("p99_ms" if scenario == "load" else "both",)
        }
        for name, theirs in results.items()
        if name != "penstock" and ours
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="a few jobs and one round")
    parser.add_argument(
        "--jobs", type=int, default=2_000, help="how many jobs are put and taken one by one"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=500.0, help="jobs in a second under load")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the load lasts")
    parser.add_argument("--only", nargs="+", choices=KNOWN, default=list(KNOWN))
    parser.add_argument("--scenario", nargs="+", help="only these")
    options = parser.parse_args()
    if options.smoke:
        options.jobs, options.rounds, options.seconds = 200, 0, 1.0
    result = run(options)
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
