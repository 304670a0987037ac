"""`penstock` without counting and timing on the path of a produced batch.

`metrics.py` compares it with the normal command.
"""

from __future__ import annotations

import asyncio
import sys

from penstock.broker import dispatch
from penstock.cli.main import main
from penstock.net.session import Answer


def on_frame(self: dispatch.BrokerSession, frame: memoryview, borrowed: bool = False) -> Answer:
    """`BrokerSession.on_frame` without metrics on the fast path."""
    refusal = None
    if len(frame) > dispatch._SHORTEST:
        api_key, version, correlation_id = dispatch._start(frame)
        if api_key == dispatch._PRODUCE:
            answer = self._fast_path.serve(frame, version, correlation_id)
            if isinstance(answer, tuple | asyncio.Future):
                self._overlaps = True
                return answer
            refusal = answer
    return self._serve_decoded(memoryview(bytearray(frame)) if borrowed else frame, refusal)


if __name__ == "__main__":
    # The broker under test is this process: its frames are not timed.
    dispatch.BrokerSession.on_frame = on_frame  # type: ignore[method-assign]
    main(sys.argv[1:])
