"""Frames in, frames out: connections, their limits, and the real sockets.

`server.py` owns the listener and every connection, `connection.py` is one peer, `budget.py` and
`admission.py` are the limits they share, `sockets.py` is the real `Network`. What a frame means is
the business of the `Session` (`session.py`) each connection is given.
"""
