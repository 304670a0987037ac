"""A worker of a queue: handles jobs on several threads until it gets SIGTERM or Ctrl-C.

    python -m examples.queue_worker BOOTSTRAP TOPIC [--workers N] [--jobs N]

Start it as often as you like: each job goes to one of the workers. A worker that is killed loses
nothing: its jobs are delivered to others. With `--jobs` it ends after that many jobs.
"""

from __future__ import annotations

import argparse
import threading

from penstock import Job, Queue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=0)
    given = parser.parse_args()
    stop = threading.Event()
    lock = threading.Lock()
    handled = 0

    def handle(job: Job[bytes]) -> None:
        nonlocal handled
        print(f"attempt {job.attempt}: {job.value!r}", flush=True)
        with lock:
            handled += 1
            if handled == given.jobs:
                stop.set()

    with Queue(given.bootstrap, given.topic) as queue:
        summary = queue.run(handle, workers=given.workers, stop=stop)
    print(f"{summary.done} done, {summary.failed} failed, {summary.released} given back")


if __name__ == "__main__":
    main()
