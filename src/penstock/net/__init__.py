"""Network layer: connections, their limits, and the real sockets.

`server.py` owns the listener and every connection, `connection.py` is one connection, `budget.py`,
`response_budget.py` and `admission.py` are the limits they share, and `sockets.py` is the real
`Network`. The meaning of a frame is left to the `Session` (`session.py`) of each connection.
"""
