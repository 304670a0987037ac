"""Writes a broker's configuration as TOML: the commented default file, and the files of `up`."""

from __future__ import annotations

import json
import textwrap
from dataclasses import fields
from pathlib import Path

from penstock.broker.config import BrokerConfig
from penstock.metadata.broker_configs import BROKER_CONFIGS

_KAFKA = "kafka"
_HEAD = """\
# A Penstock broker: penstock broker --config FILE
#
# Every key is shown with its default; remove the # to change one.
"""
_KAFKA_HEAD = """\
# Kafka's broker settings, by their names. The log.* ones are defaults for topics. Kafka's other
# settings are accepted as well and have no effect.
[kafka]
"""


def default_text() -> str:
    """Returns a config file with every key commented out, with its meaning and its default."""
    defaults = BrokerConfig()
    blocks = [_HEAD]
    for key in fields(defaults):
        if key.name != _KAFKA:
            setting = f"{key.name} = {_toml(getattr(defaults, key.name))}"
            blocks.append(_documented(key.metadata.get("doc", ""), setting))
    blocks.append(_KAFKA_HEAD)
    for name, definition in sorted(BROKER_CONFIGS.items()):
        if definition.set_by:
            continue
        default = definition.default_text()
        doc = definition.documentation
        if default is None:
            doc = f"{doc} Not set by default."
        blocks.append(_documented(doc, f"{_toml(name)} = {_toml(default or '')}"))
    return "\n".join(blocks)


def _documented(doc: str, setting: str) -> str:
    lines = textwrap.wrap(doc, 96)
    return "".join(f"# {line}\n" for line in lines) + f"#{setting}\n"


def config_text(config: BrokerConfig) -> str:
    """Returns a config file for `penstock broker --config`, with only the non-default keys."""
    defaults = BrokerConfig()
    lines = [
        f"{key.name} = {_toml(getattr(config, key.name))}"
        for key in fields(config)
        if key.name != _KAFKA and getattr(config, key.name) != getattr(defaults, key.name)
    ]
    if config.kafka:
        lines += ["", "[kafka]"]
        lines += [f"{_toml(name)} = {_toml(value)}" for name, value in config.kafka]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Returns the value as TOML, which writes strings, numbers and booleans as JSON does."""
    return json.dumps(value, ensure_ascii=True)


def metrics_url(data_dir: str) -> str | None:
    """Returns where the metrics are, as the broker of this data directory wrote to `broker.json`.

    None if the broker has no metrics endpoint, or there is no such file.
    """
    try:
        about: dict[str, str] = json.loads(Path(data_dir, "broker.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    address = about.get("metrics")
    return None if address is None else f"{about.get('metrics_scheme', 'http')}://{address}"
