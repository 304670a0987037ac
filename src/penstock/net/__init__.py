"""Network layer: connections, their limits, and the real sockets.

`server.py` owns the listeners and every connection, `connection.py` is one connection with its
`request_queue.py` and its `outbox.py`, `budget.py`, `response_budget.py` and `admission.py` are the
limits they share, and `sockets.py` is the real `Network`. The meaning of a frame is left to the
`Session` (`session.py`) of each connection.
"""
