"""Observability of a broker: metrics for Prometheus, health checks, and logs.

The rest of the broker uses only `counters.py`: plain numbers that hot paths add to. Everything else
is read from the broker on request (`gather.py`, `families.py`, `health.py`), or follows from
changes of the cluster image (`event_log.py`). `observability.py` wires it up for a real process. A
simulated broker has its counters and nothing else.
"""
