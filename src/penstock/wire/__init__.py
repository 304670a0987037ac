"""The Kafka protocol as bytes and messages: no sockets, no clocks, no opinions.

Read in this order: `schema/notation.py` (how messages are described), `codec.py` (bytes to messages
and back), `framing.py` (a stream to frames), `api.py` (which versions we speak), `errors.py`.
Message classes are in `penstock.wire.messages`.
"""
