"""Celery on Penstock: tasks that workers share, with a chain and a retry.

    penstock up
    celery -A examples.celery_tasks worker
    python -m examples.celery_tasks

`PENSTOCK_URL` names another broker than penstock://localhost:9092.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, chain

app = Celery(
    "shop", broker=os.environ.get("PENSTOCK_URL", "penstock://localhost:9092"), backend="rpc://"
)
app.conf.task_acks_late = True
app.conf.broker_connection_retry_on_startup = True


@app.task(name="shop.price")
def price(items: list[int]) -> int:
    return sum(items)


@app.task(name="shop.discount", bind=True, max_retries=3)
def discount(self: Any, cents: int, percent: int) -> int:
    """Fails the first time, as a service that it calls might."""
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    return cents * (100 - percent) // 100


def main() -> None:
    order = chain(price.s([1250, 750]), discount.s(percent=10))
    print(order.apply_async().get(timeout=60))


if __name__ == "__main__":
    main()
