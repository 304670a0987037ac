"""Worker processes end with the process that started them."""

from __future__ import annotations

import subprocess
import sys

from penstock.sim.worker_pool import worker_pool
from penstock.testing.slowness import patient

PARENT = """
import os, time
from penstock.sim.worker_pool import worker_pool

def work(number):
    os.write(1, b"working\\n")  # in one piece: `print` writes the end of the line separately
    time.sleep(600)

if __name__ == "__main__":
    with worker_pool(2) as pool:
        list(pool.map(work, range(2)))
"""


def test_workers_end_when_their_parent_is_killed() -> None:
    """Their output closes only when the last of them has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        for _ in range(2):
            assert parent.stdout.readline() == "working\n"
        parent.kill()
        rest, _ = parent.communicate(timeout=patient(120))
    assert rest == ""


def test_work_is_done_and_the_pool_ends() -> None:
    """The thread that watches the parent does not keep a worker alive."""
    with worker_pool(2) as pool:
        assert list(pool.map(abs, [-1, 2, -3])) == [1, 2, 3]
