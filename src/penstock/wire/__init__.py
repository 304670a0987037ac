"""The Kafka protocol: converts bytes to messages and back. Has no sockets and no clocks.

Read in this order: `schema/notation.py` (how messages are described), `codec.py` (bytes to messages
and back), `framing.py` (a stream to frames), `api.py` (the versions that we support), `errors.py`.
Message classes are in `penstock.wire.messages`.
"""
