"""Docker, Kubernetes and systemd files: the checks that do not need Docker or Kubernetes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.files import DEPLOY, broker_config, document, documents, parse
from penstock.broker.metrics.token_guard import read_token
from penstock.security.addresses import is_loopback
from penstock.testing.slowness import patient

PORT = 9092
METRICS_PORT = 9404
HEALTH = ("/health/live", "/health/ready")


# Docker


def instructions(path: str) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (DEPLOY / path).read_text("utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_the_image_contains_what_it_runs() -> None:
    """Sources exist and are not ignored, the command parses, the ports are those of its broker."""
    steps = instructions("docker/Dockerfile")
    kept = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    root = DEPLOY.parent
    for name, rest in steps:
        if name == "COPY" and "--from" not in rest:
            for source in shlex.split(rest)[:-1]:
                assert (root / source).exists(), source
                assert f"!{source.removeprefix('./')}" in kept, source
    words = dict(steps)
    assert words["ENTRYPOINT"] == '["penstock"]'
    command = [each.strip('" ') for each in words["CMD"].strip("[]").split(",")]
    assert parse(command)["config"] == "/etc/penstock/broker.toml"
    config = broker_config(DEPLOY / "docker" / "broker.toml", [])
    assert (config.port, config.metrics) == (PORT, f"127.0.0.1:{METRICS_PORT}")
    assert read_token(config) is None
    assert words["EXPOSE"].split() == [str(PORT), str(METRICS_PORT), "8090"]
    assert f"127.0.0.1:{METRICS_PORT}{HEALTH[0]}" in words["HEALTHCHECK"]
    assert words["USER"] != "root"
    assert config.data_dir.startswith(words["VOLUME"])


def compose() -> dict[str, Any]:
    found: dict[str, Any] = document("docker/compose.yml")["services"]
    return found


def test_compose_runs_three_brokers_that_find_each_other() -> None:
    """Each has its own id, port and name, and publishes the port that it advertises."""
    brokers = {name: each for name, each in compose().items() if name.startswith("broker-")}
    assert len(brokers) == 3
    configs = []
    for name, service in brokers.items():
        options = parse(service["command"])
        assert options["config"] == "/etc/penstock/broker.toml"
        config = broker_config(DEPLOY / "docker" / "broker.toml", options["settings"])
        assert config.advertised_host == name
        assert service["ports"] == [f"127.0.0.1:{config.port}:{config.port}"]
        assert service["volumes"] == [f"{name}:/var/lib/penstock"]
        configs.append(config)
    assert [config.broker_id for config in configs] == [0, 1, 2]
    assert len({config.port for config in configs}) == 3
    for config in configs:
        assert not is_loopback((config.metrics_address or ("", 0))[0])
        assert Path(config.metrics_token_file).name in document("docker/compose.yml")["secrets"]
    (store,) = {config.store for config in configs}
    etcds = [name for name in compose() if name.startswith("etcd-")]
    assert store == f"etcd://{','.join(f'{name}:2379' for name in etcds)}/penstock"
    addresses = ",".join(f"{config.advertised_host}:{config.port}" for config in configs)
    assert parse(compose()["console"]["command"])["bootstrap"] == addresses


def test_etcd_members_know_each_other() -> None:
    """By the names that compose gives them."""
    etcds = {name: each for name, each in compose().items() if name.startswith("etcd-")}
    members = ",".join(f"{name}=http://{name}:2380" for name in etcds)
    for name, service in etcds.items():
        options = dict(each.removeprefix("--").split("=", 1) for each in service["command"])
        assert options["name"] == name
        assert options["initial-cluster"] == members
        assert options["initial-advertise-peer-urls"] == f"http://{name}:2380"
        assert options["advertise-client-urls"] == f"http://{name}:2379"
        assert service["volumes"] == [f"{name}:{options['data-dir']}"]


@pytest.mark.skipif(shutil.which("etcd") is None, reason="there is no etcd here")
def test_etcd_supports_the_options_in_the_compose_file() -> None:
    """The image installs Debian's etcd."""
    told = subprocess.run(
        ["etcd", "--help"], capture_output=True, text=True, timeout=patient(60), check=False
    )
    for each in compose()["etcd-0"]["command"]:
        assert each.partition("=")[0] in told.stdout + told.stderr


def test_everything_that_compose_mounts_exists() -> None:
    """Our files by their paths, volumes by their names."""
    whole = document("docker/compose.yml")
    for service in whole["services"].values():
        for each in service.get("volumes", ()):
            source = each.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "docker" / source).exists(), source
            else:
                assert source in whole["volumes"]
        for other in service.get("depends_on", ()):
            assert other in whole["services"]


# Kubernetes


def resources() -> dict[str, Any]:
    named = document("kubernetes/kustomization.yaml")["resources"]
    found = [each for name in named for each in documents(f"kubernetes/{name}")]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found}


def test_kubernetes_parts_fit_together() -> None:
    """Selectors, services, volumes and ports refer to each other correctly."""
    found = resources()
    brokers = found["StatefulSet penstock"]["spec"]
    pod = brokers["template"]
    labels = pod["metadata"]["labels"]
    assert brokers["selector"]["matchLabels"] == labels
    for name in ("Service penstock", "Service penstock-brokers"):
        assert found[name]["spec"]["selector"] == labels
    headless = found[f"Service {brokers['serviceName']}"]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True
    budget = found["PodDisruptionBudget penstock"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["maxUnavailable"] == 1
    (container,) = pod["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"kafka": PORT, "metrics": METRICS_PORT}
    for each in headless["ports"]:
        assert ports[each["targetPort"]] == each["port"]
    volumes = {each["name"] for each in pod["spec"]["volumes"]}
    claims = {each["metadata"]["name"] for each in brokers["volumeClaimTemplates"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes | claims
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(METRICS_PORT)


def test_kubernetes_probes_use_the_health_endpoints_of_the_broker() -> None:
    """Liveness and readiness use the health endpoints; a long recovery is not killed."""
    (container,) = resources()["StatefulSet penstock"]["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"] == {"path": HEALTH[0], "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": HEALTH[1], "port": "metrics"}
    starting = container["startupProbe"]
    assert starting["periodSeconds"] * starting["failureThreshold"] >= 600


def test_a_pod_runs_a_broker_with_its_own_id(tmp_path: Path) -> None:
    """A shell runs the script; our own parser checks the command that the script would run."""
    found = resources()
    stateful = found["StatefulSet penstock"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    shell, flag, script = container["command"]
    printed = subprocess.run(
        [shell, flag, script.replace("exec penstock", 'exec printf "%s\\n"')],
        env={"POD": "penstock-2", "NAMESPACE": "penstock", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=True,
    )
    options = parse(printed.stdout.splitlines())
    assert options["config"] == "/etc/penstock/broker.toml"
    toml = tmp_path / "broker.toml"
    toml.write_text(found["ConfigMap penstock"]["data"]["broker.toml"])
    config = broker_config(toml, options["settings"])
    assert config.broker_id == 2
    service = stateful["spec"]["serviceName"]
    assert config.advertised_host == f"penstock-2.{service}.penstock.svc"
    assert (config.port, config.metrics) == (PORT, f"0.0.0.0:{METRICS_PORT}")
    assert dict(config.kafka)["min.insync.replicas"] == "2"
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert config.metrics_token_file == f"{mounts['metrics-token']}/token"
    assert config.data_dir.startswith(mounts["data"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_kustomize_builds_the_resources() -> None:
    """All resources are in one namespace."""
    built = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert built.stdout.count("namespace: penstock") == len(resources()) - 1


# systemd


def unit() -> dict[str, str]:
    lines = (DEPLOY / "systemd" / "penstock.service").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def test_the_unit_runs_a_broker() -> None:
    """Its command parses, and its example configuration is valid and uses the state directory."""
    words = shlex.split(unit()["ExecStart"])
    assert parse(words[1:])["config"] == "/etc/penstock/broker.toml"
    config = broker_config(DEPLOY / "systemd" / "broker.toml", [])
    assert config.data_dir == f"/var/lib/{unit()['StateDirectory']}"
    assert config.metrics_token_file
    assert int(unit()["LimitNOFILE"]) >= config.connections_max + config.open_files_max


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Checked with a program and a user that exist."""
    text = (DEPLOY / "systemd" / "penstock.service").read_text("utf-8")
    text = text.replace("/opt/penstock/bin/penstock", sys.executable)
    path = tmp_path / "penstock.service"
    path.write_text(text)
    ended = subprocess.run(
        ["systemd-analyze", "verify", str(path)],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    ours = [line for line in ended.stderr.splitlines() if "penstock" in line]
    assert (ended.returncode, ours) == (0, [])
