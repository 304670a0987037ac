"""The listeners of a broker's configuration."""

from __future__ import annotations

import pytest

from penstock.broker.config import BrokerConfig, ConfigError
from penstock.security.listeners import SecurityProtocol


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig(
        kafka=tuple((name.replace("_", "."), text) for name, text in settings.items())
    )


def test_without_listeners_there_is_one_in_plain_text_for_host_and_port() -> None:
    made = BrokerConfig(host="10.0.0.1", port=19092, advertised_host="kafka.example.com")
    listeners = made.listeners
    assert [str(each) for each in listeners.bound] == ["PLAINTEXT://10.0.0.1:19092"]
    told = listeners.endpoints({"PLAINTEXT": 19092}, "127.0.0.1")
    assert [str(each) for each in told] == ["PLAINTEXT://kafka.example.com:19092"]
    assert made.main_port == 19092
    assert made.metrics_address == ("127.0.0.1", 20092)


def test_listeners_take_the_place_of_host_and_port() -> None:
    made = config(listeners="PLAINTEXT://127.0.0.1:1234")
    assert made.main_port == 1234
    assert made.metrics_address == ("127.0.0.1", 2234)
    (security,) = made.listener_security.values()
    assert security.listener.protocol is SecurityProtocol.PLAINTEXT


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listeners": "nonsense"}, "is not a listener"),
        ({"listeners": "SSL://:9093"}, "not among those that are advertised"),
        (
            {"listeners": "SSL://:9093", "security_inter_broker_protocol": "SSL"},
            "ssl.keystore.location is missing",
        ),
        ({"advertised_listeners": "PLAINTEXT://a:1"}, "is set without listeners"),
        ({"listener_name_x_ssl_client_auth": "none"}, "for a listener that does not exist"),
    ],
)
def test_a_broker_does_not_start_with_wrong_listeners(
    settings: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(**settings)


def test_an_advertised_host_does_not_go_with_listeners() -> None:
    kafka = (("listeners", "PLAINTEXT://:9092"),)
    with pytest.raises(ConfigError, match=r"replace these two with advertised\.listeners"):
        BrokerConfig(advertised_host="a", kafka=kafka)
