"""Which topics can be delay topics, and which their targets.

Internal topics are no targets, because only brokers write to them. A delay topic is no target
either: a chain could be a circle.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.metadata.delay_configs import DELAY_TARGET
from penstock.metadata.image import ClusterImage
from penstock.wire.errors import ErrorCode, KafkaError


def require_delay_target(
    image: ClusterImage, name: str, configs: Mapping[str, str], before: Mapping[str, str]
) -> None:
    """Raises INVALID_CONFIG if a topic with these configs cannot be a delay topic."""
    target = configs.get(DELAY_TARGET, "")
    if not target:
        return
    problem = None
    if "compact" in configs.get("cleanup.policy", ""):
        problem = (
            "a delay topic cannot be compacted, because records that are not due yet would be "
            "removed: set cleanup.policy=delete"
        )
    elif target != before.get(DELAY_TARGET, ""):
        problem = _problem(image, name, target)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{DELAY_TARGET}={target}: {problem}.")


def _problem(image: ClusterImage, name: str, target: str) -> str | None:
    if target == name:
        return "a delay topic cannot be its own target: choose another topic"
    topic = image.topics.get(target)
    if topic is None:
        return "there is no such topic: create it first"
    beyond = topic.configs.get(DELAY_TARGET)
    if beyond:
        return f"it is a delay topic itself: choose another topic, such as its target '{beyond}'"
    for other in image.topics.values():
        if other.configs.get(DELAY_TARGET) == name:
            return (
                f"'{name}' is the target of the delay topic '{other.name}', so it cannot be a "
                f"delay topic itself: change {DELAY_TARGET} of '{other.name}' first"
            )
    return None
