"""A broker, a topic, records in and out, and a look at the log: a minute with Penstock.

Run it with `make demo`. Everything happens in a temporary directory and is gone afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PENSTOCK = str(Path(sys.executable).with_name("penstock"))


def run(*words: str, given: str = "") -> None:
    print(f"\n$ penstock {' '.join(words)}", flush=True)
    subprocess.run([PENSTOCK, *words], input=given, text=True, check=True, timeout=60)


def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        broker = subprocess.Popen(
            [PENSTOCK, "up", "--data", data, "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        try:
            ready = broker.stdout.readline() if broker.stdout is not None else ""
            print(ready, end="")
            os.environ["PENSTOCK_BOOTSTRAP"] = ready.strip().rpartition("bootstrap=")[2]
            run("topic", "create", "orders", "--partitions", "3")
            orders = "".join(f"customer{number % 5}:order {number}\n" for number in range(20))
            run("produce", "orders", "--key-separator", ":", given=orders)
            run("consume", "orders", "--from-beginning", "--max-messages", "5", "--json")
            run("topic", "describe", "orders")
            run("status")
        finally:
            broker.terminate()
            broker.wait(timeout=10)
        run("log", "verify", f"{data}/broker-0/logs")


if __name__ == "__main__":
    main()
