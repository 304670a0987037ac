"""The checks of `penstock doctor` for this machine: software, ports, disk, limits, clock.

Small functions that a test can replace query the system (`os`, /proc). Separate functions decide
what follows from the answers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import shlex
import socket
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from statistics import median
from typing import Final

from penstock.broker.config import BrokerConfig
from penstock.cli.doctor_finding import Finding, State
from penstock.cli.local_processes import listening_process, read_text
from penstock.cli.output import size_text
from penstock.client.address import Address
from penstock.ports import Clock, Disk
from penstock.runtime import SystemClock
from penstock.storage.disk import OsDisk

PYTHON_LEAST: Final = (3, 11)
FREE_LEAST: Final = 1 << 30
FREE_SHARE_LEAST: Final = 0.10
FSYNC_SLOW_S: Final = 0.020
MEMORY_LEAST: Final = 512 << 20
_FSYNCS: Final = 15
_OWNED_MAX: Final = 10_000
_UNSYNCHRONIZED: Final = 5
_IN_MEMORY: Final = ("tmpfs", "ramfs")
_OVER_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs")
_OPTIONAL: Final[tuple[tuple[str, tuple[int, ...], str, str], ...]] = (
    # Distribution, least version, extra, purpose: as in pyproject.toml.
    ("pyspark", (4, 3), "spark", "pipelines on Spark"),
    ("aetcd", (1, 0), "etcd", "brokers on several machines"),
    ("kazoo", (2, 10), "zookeeper", "brokers on several machines"),
    ("fastavro", (1, 9), "avro", "Avro"),
    ("opentelemetry-api", (1, 27), "otel", "tracing"),
)


def check_machine(data: str, ports: Iterable[int]) -> Iterator[Finding]:
    yield from check_software()
    yield check_java_for_spark()
    for port in ports:
        yield check_port(port)
    yield from check_directory(data)
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE))
    yield from check_memory(read_text("/proc/meminfo"))
    yield check_clock(_clock_state())


# Software


def check_software() -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info < PYTHON_LEAST:
        least = ".".join(str(part) for part in PYTHON_LEAST)
        yield Finding("python", State.PROBLEM, f"Python {version}", f"install {least} or newer")
    else:
        yield Finding("python", State.OK, f"Python {version}, penstock {_version('penstock')}")
    yield check_kernels()
    for name, wanted, extra, purpose in _OPTIONAL:
        yield check_optional(
            name, _version(name), wanted, f'pip install "penstock[{extra}]"', purpose
        )


def check_optional(
    name: str, found: str | None, least: tuple[int, ...], how: str, purpose: str
) -> Finding:
    if found is None:
        return Finding(name, State.NOTE, "not installed", f"for {purpose}: {how}")
    parts = tuple(int(part) for part in found.split(".")[: len(least)] if part.isdecimal())
    if parts < least:
        wanted = ".".join(str(part) for part in least)
        return Finding(name, State.WARNING, f"{found}: {purpose} needs {wanted} or newer", how)
    return Finding(name, State.OK, found)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_kernels() -> Finding:
    from penstock.records import kernels  # noqa: PLC0415 -- only this asks for them

    slow = [] if kernels.COMPILED else ["the record kernels are not compiled"]
    slow += [] if _version("uvloop") else ["uvloop is missing"]
    if not slow:
        return Finding("speed", State.OK, "compiled kernels, uvloop")
    advice = (
        "penstock works, but several times slower: install gcc and the Python headers, then "
        "reinstall penstock"
    )
    return Finding("speed", State.WARNING, " and ".join(slow), advice)


def check_java_for_spark() -> Finding:
    from penstock.spark.java import JAVA_LEAST, JavaMissing, check_java  # noqa: PLC0415 -- as above

    try:
        check_java()
    except JavaMissing as error:
        # Only Spark needs Java.
        state = State.NOTE if _version("pyspark") is None else State.WARNING
        found, _, advice = str(error).partition(": ")
        return Finding("java", state, found, advice)
    return Finding("java", State.OK, f"Java {JAVA_LEAST} or newer")


# Ports


def check_port(port: int) -> Finding:
    name = f"port {port}"
    reason = _bind_error(port)
    if reason == 0:
        return Finding(name, State.OK, "free")
    if reason != errno.EADDRINUSE:
        advice = "choose one above 1023 with --port"
        return Finding(name, State.PROBLEM, os.strerror(reason), advice)
    pid = listening_process(Address("127.0.0.1", port))
    program = "" if pid is None else _program(pid)
    who = "another user's process" if pid is None else f"{program} (pid {pid})"
    if "penstock" in program:
        return Finding(name, State.OK, f"in use by {who}")
    advice = "stop it, or choose another port: penstock up --port 19092"
    return Finding(name, State.WARNING, f"in use by {who}", advice)


def _bind_error(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0


def _program(pid: int) -> str:
    """Returns the start of the process's command line, enough to recognize the program."""
    words = read_text(f"/proc/{pid}/cmdline").split("\0")
    shown = [os.path.basename(word) for word in words[:3] if word and not word.startswith("-")]
    return " ".join(shown) or "a process"


# The data directory


def check_directory(data: str, disk: Disk | None = None) -> Iterator[Finding]:
    asked = os.path.abspath(data)
    directory = asked
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    if not os.path.isdir(directory):
        yield Finding(
            "data", State.PROBLEM, f"{directory} is a file", "give a directory with --data"
        )
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        advice = "make it writable for this user, or choose another directory with --data"
        yield Finding("data", State.PROBLEM, f"{directory} is not writable", advice)
        return
    there = "" if directory == asked else " (created at the first start)"
    yield (
        _check_owner(directory) if directory == asked else Finding("data", State.OK, asked + there)
    )
    yield from _check_file_system(directory)
    disk = disk or OsDisk()
    yield check_space(disk.free_bytes(directory), disk.total_bytes(directory), directory)
    yield check_fsync(time_fsync(disk, directory, SystemClock()), directory)


def _check_owner(directory: str) -> Finding:
    """Checks who owns the files: a broker that once ran as another user, often root, left some."""
    own = os.geteuid()
    owner = os.stat(directory).st_uid
    if own == 0 and owner != 0:
        found = f"{directory} belongs to user {owner}, but you are root"
        advice = f"run the broker as user {owner}, who cannot change files that root creates there"
        return Finding("data", State.WARNING, found, advice)
    seen = 0
    for folder, folders, files in os.walk(directory):
        for path in (folder, *(os.path.join(folder, each) for each in (*folders, *files))):
            seen += 1
            try:
                owner = os.lstat(path).st_uid
            except OSError:
                continue  # deleted meanwhile
            if own not in (owner, 0):
                quoted = shlex.quote(directory)
                advice = f"chown -R {own} {quoted}, or run the broker as user {owner}"
                found = f"{path} belongs to user {owner}, but you are user {own}"
                return Finding("data", State.PROBLEM, found, advice)
        if seen > _OWNED_MAX:
            break
    return Finding("data", State.OK, f"{directory}, owned by this user")


def _check_file_system(directory: str) -> Iterator[Finding]:
    kind = file_system(directory, read_text("/proc/mounts"))
    if kind in _IN_MEMORY:
        advice = "records are lost when the machine stops: give a directory on a disk with --data"
        yield Finding("file system", State.WARNING, f"{kind}: in memory", advice)
    elif kind in _OVER_NETWORK:
        advice = "locks and fsync may not work there: give a directory on a local disk with --data"
        yield Finding("file system", State.WARNING, f"{kind}: over a network", advice)
    elif kind:
        yield Finding("file system", State.OK, kind)


def file_system(directory: str, mounts: str) -> str:
    """Returns the type of the file system that contains the path; empty if it is not known."""
    best, kind = "", ""
    for line in mounts.splitlines():
        cells = line.split()
        if len(cells) < 3:
            continue
        point = cells[1].replace("\\040", " ")
        inside = directory == point or directory.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, cells[2]
    return kind


def check_space(free: int, total: int, directory: str) -> Finding:
    found = f"{size_text(free)} free of {size_text(total)}"
    reserve = BrokerConfig().disk_reserve_bytes
    if free < reserve:
        advice = (
            f"brokers refuse records when less than {size_text(reserve)} is free: free some space "
            f"under {directory}"
        )
        return Finding("disk space", State.PROBLEM, found, advice)
    if free < FREE_LEAST or free < total * FREE_SHARE_LEAST:
        advice = "free some, or lower retention.ms and retention.bytes of large topics"
        return Finding("disk space", State.WARNING, found, advice)
    return Finding("disk space", State.OK, found)


def time_fsync(disk: Disk, directory: str, clock: Clock) -> float:
    """Returns the median time to append 4 KiB and fsync it, as a broker does for acks=all."""
    path = f"{directory}/penstock-doctor-{os.getpid()}"
    file = disk.open(path, create=True)
    try:
        took = []
        for number in range(_FSYNCS):
            began = clock.monotonic()
            file.pwrite(b"\0" * 4096, number * 4096)
            file.fsync()
            took.append(clock.monotonic() - began)
    finally:
        file.close()
        disk.unlink(path)
    return median(took)


def check_fsync(seconds: float, directory: str) -> Finding:
    found = f"{seconds * 1000:.2f} ms to make 4 KiB durable"
    if seconds > FSYNC_SLOW_S:
        advice = (
            f"acks=all waits for the disk under {directory}: use a faster one, or set "
            "durability=replicated for topics that need no fsync"
        )
        return Finding("fsync", State.WARNING, found, advice)
    return Finding("fsync", State.OK, found)


# Limits


def check_open_files(limits: tuple[int, int]) -> Finding:
    defaults = BrokerConfig()
    wanted = defaults.open_files_max + defaults.connections_max + 200
    soft, hard = (sys.maxsize if each == resource.RLIM_INFINITY else each for each in limits)
    if soft >= wanted:
        return Finding("open files", State.OK, _limit(soft))
    connections = max(0, soft - defaults.open_files_max - 200)
    how = f"ulimit -n {wanted}" + ("" if hard >= wanted else " as root") + ", or LimitNOFILE="
    advice = f"{how}{wanted} in its systemd unit, allows {defaults.connections_max:,} connections"
    state = State.NOTE if connections >= 500 else State.WARNING
    return Finding(
        "open files", state, f"{_limit(soft)}: enough for {connections:,} connections", advice
    )


def _limit(number: int) -> str:
    return "unlimited" if number == sys.maxsize else f"{number:,}"


def check_memory(told: str) -> Iterator[Finding]:
    for line in told.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable" and rest.split()[:1]:
            available = int(rest.split()[0]) * 1024
            found = f"{size_text(available)} available"
            if available < MEMORY_LEAST:
                advice = (
                    "free some: a broker needs about 100 MiB, and the page cache makes reads fast"
                )
                yield Finding("memory", State.WARNING, found, advice)
            else:
                yield Finding("memory", State.OK, found)


# The clock


def check_clock(state: int | None) -> Finding:
    if state is None:
        return Finding(
            "clock", State.NOTE, "this system does not report whether it is synchronised"
        )
    if state == _UNSYNCHRONIZED:
        advice = (
            "run chrony, ntpd or systemd-timesyncd: retention and reads by time depend on the "
            "clocks of brokers and producers"
        )
        return Finding("clock", State.WARNING, "not synchronised", advice)
    return Finding("clock", State.OK, "synchronised")


def _clock_state() -> int | None:
    """Returns the kernel's clock state, which any NTP daemon sets; None if it is not available."""
    try:
        ask = ctypes.CDLL(None).adjtimex
    except (AttributeError, OSError):
        return None
    # A struct of zeros only queries. The buffer is longer than the struct of any system.
    answer: int = ask(ctypes.create_string_buffer(1024))
    return None if answer < 0 else answer
