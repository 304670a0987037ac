"""`penstock` without counting and timing on the path of a produced batch.

`metrics.py` compares it with the normal command.
"""

from __future__ import annotations

import sys

from penstock.broker import dispatch
from penstock.cli.main import main
from penstock.net.session import Answer


def on_borrowed(self: dispatch.BrokerSession, frame: memoryview) -> Answer:
    """`BrokerSession.on_borrowed` without metrics."""
    if len(frame) > dispatch._SHORTEST:
        api_key, version, correlation_id = dispatch._start(frame)
        if api_key == dispatch._PRODUCE:
            answer = self._lanes.serve(frame, version, correlation_id)
            self._overlaps = answer is not None
            return answer
    return None


if __name__ == "__main__":
    dispatch.BrokerSession.on_borrowed = on_borrowed  # type: ignore[method-assign]
    main(sys.argv[1:])
