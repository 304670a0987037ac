"""Tests `penstock console`, and the console that `penstock up` starts."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from console.running import Browserless, eventually
from penstock.testing.slowness import patient

PROGRAM = (sys.executable, "-m", "penstock.cli.main")
PATIENCE_S = 150.0


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(patient(120)) == 0
        assert process.stdout is not None
        process.stdout.close()


def line_with(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Returns the first matching line of the program's output, within a time limit."""
    assert process.stdout is not None
    watchdog = threading.Timer(patient(PATIENCE_S), process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if match := re.search(pattern, line):
                return match
    finally:
        watchdog.cancel()
    raise AssertionError(f"it ended, or was killed after {PATIENCE_S:g} s, without {pattern}")


def ended(visitor: Browserless) -> bool:
    """Whether nothing listens any more, or only a console of another test, on the same port."""
    try:
        return visitor.get("/api/topics").status == 401
    except (OSError, http.client.HTTPException):
        return True


def test_up_starts_a_console_that_ends_with_it(tmp_path: Path) -> None:
    """On loopback, with its address printed. It stops with the broker."""
    data = str(tmp_path / "data")
    with started("up", "--port", "0", "--data", data, PENSTOCK_CONSOLE="1") as up:
        url = line_with(up, r"console (http://127\.0\.0\.1:\d+/)")[1]
        visitor = Browserless(url)
        assert visitor.log_in().status == 200
        assert visitor.get("/api/topics").status == 200
    assert ended(visitor)


def test_up_secure_starts_a_console_with_sign_in(tmp_path: Path) -> None:
    """The first admin signs in with the generated password."""
    data = tmp_path / "data"
    arguments = ("up", "--secure", "--port", "0", "--data", str(data))
    with started(*arguments, PENSTOCK_CONSOLE="1") as up:
        url = line_with(up, r"console (http://127\.0\.0\.1:\d+/)")[1]
        visitor = Browserless(url)
        assert visitor.log_in().json["needs"] == "password"
        password = (data / "security" / "admin-password").read_text().strip()
        assert visitor.sign_in("admin", password).json["user"] == "admin"
        assert visitor.get("/api/access/users").json["users"][0]["user"] == "admin"
    assert ended(visitor)


def test_up_can_run_without_a_console(tmp_path: Path) -> None:
    """`--no-console` starts no process besides the broker."""
    arguments = ("up", "--port", "0", "--data", str(tmp_path / "data"), "--no-console")
    with started(*arguments, PENSTOCK_CONSOLE="1") as up:
        line_with(up, "^ready bootstrap=")
        children = Path(f"/proc/{up.pid}/task/{up.pid}/children").read_text()
        assert children.strip() == ""


def test_a_console_ends_when_its_up_is_killed(tmp_path: Path) -> None:
    """No process is left behind that occupies the port."""
    process = subprocess.Popen(
        [*PROGRAM, "up", "--port", "0", "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PENSTOCK_CONSOLE": "1"},
    )
    try:
        visitor = Browserless(line_with(process, r"console (http://127\.0\.0\.1:\d+/)")[1])
        assert visitor.log_in().status == 200
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(patient(120))
        assert process.stdout is not None
        process.stdout.close()
    assert eventually(lambda: ended(visitor))


def test_the_command_creates_a_token_for_all_addresses() -> None:
    """When it listens on all addresses, it creates a token, which is not visible
    in the process arguments."""
    with started("console", "--port", "0", "--host", "0.0.0.0", "-b", "127.0.0.1:1") as console:
        match = line_with(console, r"console (http://0\.0\.0\.0:(\d+)/)#token=(\w{32})")
        visitor = Browserless(f"http://127.0.0.1:{match[2]}/")
        assert visitor.log_in().status == 401
        assert visitor.log_in(match[3]).status == 200
        assert match[3] not in Path(f"/proc/{console.pid}/cmdline").read_text()


def test_settings_of_the_sign_in_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    """In one line, with advice, before the console listens."""
    profiles = tmp_path / "penstock" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "tls.toml").write_text('bootstrap = "h:1"\nsecurity_protocol = "SASL_SSL"\n')
    key = tmp_path / "key.pem"
    key.write_text("no key\n")
    profile = ("--profile", "tls", "--sign-in")
    for arguments, advice in (
        (("--sign-in", "-b", "h:1"), "needs a cluster with SASL"),
        ((*profile, "--mechanism", "MD5"), "use PLAIN"),
        ((*profile, "--mechanism", "OAUTHBEARER"), "--oauth-issuer"),
        ((*profile, "--oauth-issuer", "http://login.example"), "must be an https address"),
        ((*profile, "--oauth-issuer", "https://login.example"), "--oauth-client-id"),
        ((*profile, "--host", "0.0.0.0"), "--tls-certificate"),
        ((*profile, "--tls-certificate", str(key)), "as PEM files"),
        ((*profile, "--tls-certificate", "/none.pem"), "as PEM files"),
        (("--profile", "none", "--sign-in"), "profile"),
    ):
        ended = subprocess.run(
            [*PROGRAM, "console", "--port", "0", *arguments],
            capture_output=True,
            text=True,
            timeout=patient(PATIENCE_S),
            check=False,
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        )
        assert ended.returncode == 2, arguments
        assert advice in ended.stderr, arguments
        assert len(ended.stderr.splitlines()) == 1, ended.stderr


def test_a_port_in_use_is_reported() -> None:
    """In one line, with advice."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [*PROGRAM, "console", "--port", port],
            capture_output=True,
            text=True,
            timeout=patient(PATIENCE_S),
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr == f"penstock: port {port} is in use: choose another with --port\n"
