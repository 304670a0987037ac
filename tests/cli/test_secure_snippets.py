"""Uses what `penstock up --secure` and docs/SECURITY.md tell people to copy, on a real cluster.

The cluster's directory has a name with a blank, a quote and an umlaut, and its password has quotes
and backslashes. So a snippet that forgets to quote one of them fails here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from cli.conftest import Runner
from cli.test_live import PROGRAM, cluster
from compat.java_build import VERSIONS, compiled
from compat.test_kafka_tools import KAFKA as TOOLS
from compat.toolchain import java_class_path, java_flags, run_scenario
from penstock import Admin, Consumer, Producer
from penstock.cli import secure_setup
from penstock.cli.secure_setup import SecureSetup
from penstock.errors import AuthenticationFailed
from penstock.testing.slowness import patient

PAGE = Path(__file__).resolve().parents[2] / "docs" / "SECURITY.md"
ADDRESS_ON_THE_PAGE = "localhost:9092"
PASSWORD = r"""a "strange" \pass$word 'of #%{x}\n"""
TOPIC = "orders"
LIMIT_S = 60
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class Secured:
    home: Path
    """The folder in which the commands run. Its folder `penstock-data` has the cluster."""
    bootstrap: str
    sections: dict[str, str]
    """What `penstock up --secure` printed, by the first word or words of the headings."""

    @property
    def setup(self) -> SecureSetup:
        return SecureSetup(self.home / "penstock-data" / "security", PASSWORD)

    @property
    def login(self) -> dict[str, Any]:
        return {
            "security_protocol": "SASL_SSL",
            "ssl_ca": str(self.setup.authority_path),
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "admin",
            "sasl_password": PASSWORD,
        }

    def shell(self, text: str) -> str:
        """Runs commands as a person would who pasted them. Returns what they print."""
        programs = self.home / "bin"
        environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "COLUMNS": "200",
        }
        environment.pop("PENSTOCK_BOOTSTRAP", None)
        ran = subprocess.run(
            ["/bin/sh", "-e", "-c", text],
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(LIMIT_S),
        )
        assert ran.returncode == 0, f"{text}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def values(self) -> list[bytes | None]:
        with Consumer(self.bootstrap, **self.login) as consumer:
            return [row["value"] for row in consumer.read_table(TOPIC).to_pylist()]


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured") / "it's a höme"
    folder = home / "penstock-data" / "security"
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    (folder / "admin-password").write_text(f"{PASSWORD}\n", "ascii")
    (folder / "admin-password").chmod(0o600)
    (home / "bin").mkdir()
    program(home / "bin" / "penstock", f'exec {shlex.join(PROGRAM)} "$@"')
    with cluster(home / "penstock-data", "--secure", "--no-console") as (bootstrap, process):
        assert process.stderr is not None
        expected = secure_setup.snippets(SecureSetup(folder, PASSWORD), bootstrap).splitlines()
        printed: list[str] = []
        for line in process.stderr:
            printed.append(line.rstrip("\n"))
            if printed[-len(expected) :] == expected:
                break
        assert printed[-len(expected) :] == expected, "it did not print how clients connect"
        made = Secured(home, bootstrap, sections_of("\n".join(expected)))
        with Admin(bootstrap, **made.login) as admin:
            admin.create_topic(TOPIC, partitions=1)
        yield made


def sections_of(text: str) -> dict[str, str]:
    """Returns the text below each heading."""
    parts = re.split(r"^# (.*)\n", text, flags=re.MULTILINE)[1:]
    titles = [re.split(r",| \(", title)[0] for title in parts[::2]]
    return dict(zip(titles, parts[1::2], strict=True))


def test_each_printed_snippet_has_a_test(secured: Secured) -> None:
    assert [*secured.sections] == [
        "the command line",
        *PYTHON_CLIENTS,
        "Spark",
        "Java",
        "kcat",
    ]


def test_the_printed_commands_work(secured: Secured) -> None:
    listed = secured.shell(secured.sections["the command line"])
    assert TOPIC in listed.split()


PYTHON_CLIENTS = {
    "penstock": "with producer:\n    producer.send({topic}, {value}).result(timeout_s={limit_s})",
    "confluent-kafka": "producer.produce({topic}, {value})\nassert not producer.flush({limit_s})",
    "kafka-python": "producer.send({topic}, {value}).get({limit_s})\nproducer.close()",
    "aiokafka": (
        "await producer.start()\nawait producer.send_and_wait({topic}, {value})\n"
        "await producer.stop()"
    ),
}
"""What a person would write below the snippet of each client to send a record."""


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_a_printed_python_snippet_makes_a_producer(secured: Secured, client: str) -> None:
    value = f"by {client}".encode()
    use = PYTHON_CLIENTS[client].format(topic=repr(TOPIC), value=value, limit_s=patient(LIMIT_S))
    code = f"{secured.sections[client]}\n{use}\n"
    if "await " in code:
        code = f"import asyncio\nasync def main():\n{indent(code, '    ')}\nasyncio.run(main())\n"
    script = secured.home / "snippet.py"
    script.write_text(code, "utf-8")
    secured.shell(shlex.join([sys.executable, script.name]))
    assert value in secured.values()


def made_by(code: str, **given: Any) -> dict[str, Any]:
    """Runs Python code. Returns its variables."""
    variables = dict(given)
    exec(compile(code, "snippet", "exec", dont_inherit=True), variables)
    return variables


# -- Spark -----------------------------------------------------------------------------------------


class Reader:
    """Stands for `spark.readStream`: keeps what it is told."""

    def __init__(self) -> None:
        self.source = ""
        self.given: dict[str, str] = {}

    def format(self, source: str) -> Reader:
        self.source = source
        return self

    def options(self, **options: str) -> Reader:
        self.given |= options
        return self

    def load(self) -> Reader:
        return self


class Spark:
    def __init__(self) -> None:
        self.readStream = Reader()


def test_the_source_of_spark_reads_with_the_printed_options(secured: Secured) -> None:
    """The calls are those of Spark, without its JVM."""
    pytest.importorskip("pyspark", reason="the source needs pyspark")
    from spark.direct import Stream

    told = made_by(secured.sections["Spark"], spark=Spark())["orders"]
    assert told.source == "penstock"
    options = {name: value for name, value in told.given.items() if name != "subscribe"}
    with Producer(secured.bootstrap, **secured.login) as producer:
        producer.send(TOPIC, b"for Spark").result(timeout_s=LIMIT_S)
    bootstrap = options.pop("kafka.bootstrap.servers")
    started = {**options, "startingOffsets": "earliest"}
    with Stream(bootstrap, told.given["subscribe"], **started) as stream:
        rows = [row["value"] for batch in stream.until_idle() for row in batch.rows]
    assert b"for Spark" in rows


# -- Java ------------------------------------------------------------------------------------------


def read_properties(data: bytes) -> dict[str, str]:
    """Reads a file as `java.util.Properties` does: Latin-1, with backslashes as escapes."""
    found = {}
    for line in data.decode("latin-1").splitlines():
        name, _, value = line.partition("=")
        found[name] = re.sub(r"\\(u[0-9a-f]{4}|.)", _unescaped, value)
    return found


def _unescaped(match: re.Match[str]) -> str:
    text = match[1]
    return chr(int(text[1:], 16)) if len(text) > 1 else {"n": "\n", "t": "\t"}.get(text, text)


def read_login(text: str) -> tuple[str, dict[str, str]]:
    """Reads a `sasl.jaas.config` as Java does. Returns the class and its options."""
    module, flag, *options = re.findall(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+', text.removesuffix(";"))
    assert flag == "required" and text.endswith(";"), text
    pairs = (option.partition("=") for option in options)
    return module, {name: re.sub(r"\\(.)", r"\1", value[1:-1]) for name, _, value in pairs}


def topics_seen(settings: dict[str, str]) -> set[str]:
    """Returns the topics that a client of librdkafka sees with these settings."""
    seen = AdminClient({**settings}).list_topics(timeout=patient(LIMIT_S))
    return set(seen.topics)


def test_the_java_properties_log_in(secured: Secured) -> None:
    """The values that Java would read connect a client of librdkafka, which has the same names."""
    command = shlex.split(secured.sections["Java"].replace("\\\n", ""))
    assert command[0] == "kafka-topics.sh"
    given = dict(zip(command[1:-1:2], command[2:-1:2], strict=True))
    properties = read_properties(Path(given["--command-config"]).read_bytes())
    module, login = read_login(properties.pop("sasl.jaas.config"))
    assert module == SCRAM
    assert properties.pop("ssl.truststore.type") == "PEM"
    authority = properties.pop("ssl.truststore.location")
    assert TOPIC in topics_seen(
        {
            **properties,
            "bootstrap.servers": given["--bootstrap-server"],
            "ssl.ca.location": authority,
            "sasl.username": login["username"],
            "sasl.password": login["password"],
        }
    )


@pytest.mark.parametrize("text", ["plain", 'a "b" \\ c\\', "größe", "\N{BEAR FACE}", "c:\\new"])
def test_java_reads_what_was_written(text: str) -> None:
    setup = SecureSetup(Path("/", text), text)
    written = secure_setup.java_properties(setup)
    read = read_properties(written.encode("ascii"))
    place = read["ssl.truststore.location"].encode("utf-16", "surrogatepass").decode("utf-16")
    assert place == str(setup.authority_path)
    password = read_login(read["sasl.jaas.config"])[1]["password"]
    assert password.encode("utf-16", "surrogatepass").decode("utf-16") == text


UTF_8 = {"LC_ALL": "C.UTF-8"}
"""Java finds files whose names are not ASCII only if the locale says how names are encoded."""


def properties_of(secured: Secured) -> str:
    """Returns the path of the file that the printed command names."""
    command = shlex.split(secured.sections["Java"].replace("\\\n", ""))
    return command[command.index("--command-config") + 1]


@pytest.mark.parametrize("version", VERSIONS)
def test_java_reads_the_printed_file(secured: Secured, version: str, tmp_path: Path) -> None:
    """The Java client itself loads the file, and creates a topic, produces, consumes and lists."""
    path = compiled(version, tmp_path, "Secured")
    given = [f"-Dbootstrap={secured.bootstrap}", "-cp", path, "Secured", properties_of(secured)]
    made = f"java-{version}"
    steps = run_scenario(["java", *java_flags(), *given, made, TOPIC], UTF_8)
    assert {step: each["result"] for step, each in steps.items()} == {
        "create": "ok",
        "produce": "ok",
        "consume": "one two three",
        "list": "ok",
        "other": "ok",
    }
    assert {made, TOPIC} <= topics_of(secured, secured.login)


def test_the_printed_command_of_kafkas_tools_works(secured: Secured) -> None:
    """`kafka-topics.sh` itself, as Kafka's script starts it."""
    path = java_class_path(TOOLS, "kafka-tools")
    command = ["java", *java_flags(), "-cp", path, "org.apache.kafka.tools.TopicCommand"]
    tool = secured.home / "bin" / "kafka-topics.sh"
    program(tool, f'LC_ALL={UTF_8["LC_ALL"]} exec {shlex.join(command)} "$@"')
    try:
        assert TOPIC in secured.shell(secured.sections["Java"]).split()
    finally:
        tool.unlink()


# -- kcat ------------------------------------------------------------------------------------------


def test_the_settings_of_kcat_log_in(secured: Secured) -> None:
    """Another client of the same library connects with what the shell passes to kcat."""
    shown = "import json, sys; print(json.dumps(sys.argv[1:]))"
    kcat = secured.home / "bin" / "kcat"
    program(kcat, f'exec {shlex.join([sys.executable, "-c", shown])} "$@"')
    try:
        arguments = json.loads(secured.shell(secured.sections["kcat"]))
    finally:
        kcat.unlink()
    settings = {"bootstrap.servers": arguments[arguments.index("-b") + 1]}
    for at, argument in enumerate(arguments):
        if argument == "-X":
            name, _, value = arguments[at + 1].partition("=")
            settings[name] = value
    assert settings["sasl.password"] == PASSWORD
    assert TOPIC in topics_seen(settings)


def test_the_printed_command_of_kcat_works(secured: Secured) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not on the PATH: apt-get install kcat")
    shown = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", shown)
    assert found is not None, shown
    if tuple(map(int, found.groups())) < (2, 6, 1):
        pytest.skip(f"kcat has {found[0]}, which cannot log in with SCRAM at Kafka 4 either")
    assert TOPIC in secured.shell(secured.sections["kcat"])


# -- the page --------------------------------------------------------------------------------------


class Typed:
    """Runs commands of the page, in the folder and with the profile that the page assumes."""

    def __init__(self, runner: Runner, secured: Secured) -> None:
        self._runner = runner
        self._secured = secured

    def __call__(self, text: str, *more: str) -> str:
        """Returns what the last of the commands prints. `more` is added to it."""
        given = text.replace(ADDRESS_ON_THE_PAGE, self._secured.bootstrap).replace("\\\n", " ")
        commands = [shlex.split(line) for line in given.strip().splitlines()]
        commands[-1] += more
        printed = ""
        for name, *arguments in commands:
            assert name == "penstock"
            ended = self._runner(*arguments)
            assert ended.code == 0, (arguments, ended)
            printed = ended.out
        return printed

    def once_it_works(self, text: str) -> None:
        """Repeats a command until it succeeds, because brokers do something later."""
        until = time.monotonic() + patient(60)
        arguments = shlex.split(text)[1:]
        while (ended := self._runner(*arguments)).code != 0:
            assert time.monotonic() < until, ended
            time.sleep(0.1)


@pytest.fixture
def typed(penstock: Runner, secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Typed:
    monkeypatch.chdir(secured.home)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(secured.home / "config"))
    monkeypatch.setenv("PENSTOCK_PROFILE", "local")
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP", raising=False)
    made = Typed(penstock, secured)
    up, commands = blocks("In one command")
    assert up.strip() == "penstock up --secure"
    made(commands.partition("penstock user add")[0])
    return made


def section(heading: str) -> str:
    """Returns the text below a heading of the page."""
    found = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert found, f"the page has no {heading}"
    return found


def blocks(heading: str) -> list[str]:
    """Returns the indented blocks below a heading."""
    found = re.findall(r"(?:^    .*\n)+", section(heading), re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


def inline(heading: str, start: str) -> str:
    """Returns the command in the text below a heading that begins so."""
    found = re.search(rf"`({start}[^`]*)`", section(heading))
    assert found is not None, f"the page has no {start}"
    return " ".join(found[1].split())


def test_the_commands_of_the_page_give_rights(secured: Secured, typed: Typed) -> None:
    """From a user without rights to one who may write and read, and to none."""
    (secured.home / "password").write_text("a password of alice\n")
    add, allow = blocks("In one command")[1].splitlines()[-2:]
    typed(add, "--password-file", "password")  # The page lets a person type it.
    check = inline("Rights", "penstock access check")
    typed(allow)
    assert "yes" in typed(check.replace(" read ", " write ")).lower()
    typed(inline("Rights", "penstock role grant"))
    assert "yes" in typed(check).lower()
    typed.once_it_works(inline("Quotas and audit", "penstock audit"))  # The topic is created late.
    typed(inline("Rights", "penstock user delete"), "--yes")
    assert typed("penstock user list --json").count("alice") == 0


def test_the_delegation_tokens_of_the_page_log_in(secured: Secured, typed: Typed) -> None:
    """Tokens that a command and Python make, used with the names of Python and Java."""
    create, show, renew, expire = blocks("Delegation tokens")[0].splitlines()
    typed(create)
    token_id = json.loads(typed(show, "--json"))["tokens"][0]["token_id"]
    typed(renew.replace("ID", token_id))
    hmac = (secured.home / "job-token").read_text().strip()
    java = re.search(r"`Scram(LoginModule .*?;)`", section("Delegation tokens"))
    assert java is not None
    _, read = read_login(java[1].replace('"ID"', f'"{token_id}"').replace('"HMAC"', f'"{hmac}"'))
    given: dict[str, Any] = {f"sasl_{name}": value for name, value in read.items()}
    assert given.pop("sasl_tokenauth") == "true"
    login = {**secured.login, **given, "sasl_tokenauth": True}
    assert TOPIC in topics_of(secured, login)
    code = re.search(r"```python\n(.*?)```", section("Delegation tokens"), re.DOTALL)
    assert code is not None
    with Admin(secured.bootstrap, **secured.login) as admin:
        made = made_by(code[1], admin=admin)["login"]
    assert TOPIC in topics_of(secured, {**secured.login, **made})
    typed(expire.replace("ID", token_id), "--yes")
    with pytest.raises(AuthenticationFailed):
        topics_of(secured, login)


def topics_of(secured: Secured, login: dict[str, Any]) -> set[str]:
    with Admin(secured.bootstrap, **login) as admin:
        return {topic.name for topic in admin.list_topics()}


def test_spark_reads_with_the_options_for_a_token(secured: Secured) -> None:
    pytest.importorskip("pyspark", reason="the source needs pyspark")
    from spark.direct import read_all

    names = re.findall(r"`(kafka\.sasl\.[a-z]+)`", section("Delegation tokens"))
    with Admin(secured.bootstrap, **secured.login) as admin:
        token = admin.create_delegation_token()
    with Producer(secured.bootstrap, **secured.login) as producer:
        producer.send(TOPIC, b"for a job").result(timeout_s=LIMIT_S)
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.ca": str(secured.setup.authority_path),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        **dict(zip(names, (token.token_id, token.hmac, "true"), strict=True)),
    }
    rows = read_all(secured.bootstrap, TOPIC, **options)
    assert b"for a job" in [row["value"] for row in rows]
