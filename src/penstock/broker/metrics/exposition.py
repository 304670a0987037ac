"""Builds metric families and renders them in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from penstock.broker.counters import Histogram
from penstock.broker.metrics import names

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
Sample = tuple[tuple[str, ...], float]
_INFINITE: Final = "+Inf"


class _One:
    """A collector of a single family, as the renderer requires."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def render(family: Metric) -> bytes:
    return generate_latest(_One(family))


def family(about: names.Metric, samples: Iterable[Sample]) -> Metric:
    """Returns a counter or gauge family with its samples."""
    made: GaugeMetricFamily | CounterMetricFamily
    if about.kind is names.Kind.COUNTER:
        name = about.name.removesuffix("_total")
        made = CounterMetricFamily(name, about.about, labels=about.labels)
    else:
        made = GaugeMetricFamily(about.name, about.about, labels=about.labels)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made


def histogram(about: names.Metric, samples: Iterable[tuple[tuple[str, ...], Histogram]]) -> Metric:
    made = HistogramMetricFamily(about.name, about.about, labels=about.labels)
    for labels, held in samples:
        counts = list(accumulate(held.counts))
        bounds = [*map(repr, held.bounds), _INFINITE]
        made.add_metric(labels, list(zip(bounds, counts, strict=True)), held.sum_s)
    return made
