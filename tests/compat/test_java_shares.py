"""Share groups as Java's share consumer and its admin client use them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from compat.java_build import VERSIONS, compiled
from compat.toolchain import RUN_S, java_flags
from penstock import Producer
from penstock.testing import Broker
from penstock.testing.slowness import patient


def test_java_takes_and_settles_records_and_administers_the_group(tmp_path: Path) -> None:
    classes = compiled(VERSIONS[-1], tmp_path, "newer/Shares")
    with Broker() as broker:
        topic, group = broker.new_topic(1), broker.new_name("group")
        with Producer(broker.bootstrap) as producer:
            for number in range(4):
                producer.send(topic, b"%d" % number)
        command = ["java", *java_flags(), "-cp", classes, "Shares", broker.bootstrap, group, topic]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=patient(RUN_S)
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        # The released record comes again with a higher count; the renewed one with the same.
        "seen 0:1:accept 1:1:release 1:2:accept 2:1:reject 3:1:accept 3:1:renew",
        f"group Stable 1 [{topic}-0]",
        "type Share",
        "offset 4",
        "altered 1",
        "left 0",
    ]
