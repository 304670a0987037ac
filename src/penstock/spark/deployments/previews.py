"""Rows of tables for people: how the console asks a worker for them. Pure.

A request is a record in the topic `topics.PREVIEWS`, and so is its answer. Workers read the topic
from its end. The worker that runs the pipeline asks its driver.

The rows of a table are made from the records of topics. The console lets a user ask only if the
user may read all of them, and names them in the request. The worker refuses if its driver reads
others now, as when another version was deployed meanwhile. It cannot tell who wrote a request, so
who may write to the topic without a console may see rows of all tables.

The topic can be read by everyone who may look at pipelines, so an answer is encrypted for the
client that has asked: X25519 with a new key of each side for each request, HKDF, and AES-GCM.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.spark.deployments.model import decode, encode
from penstock.spark.pipelines.graph import UNKNOWN_TOPICS

ROWS_MAX: Final = 50
COLUMNS_MAX: Final = 100
ANSWER_S: Final = 15.0
"""How long a driver may take for the rows."""
REQUEST_S: Final = 30.0
"""An older request is not answered: nobody waits for it any more."""
_KEY_BYTES: Final = 32
_NONCE: Final = bytes(12)
"""Each key encrypts one answer."""

RandomBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    id: str
    name: str
    """The pipeline."""
    node: str
    """The id of a table in its graph."""
    at_ms: int
    key: str = field(repr=False)
    """The public key of the client, in base64."""
    limit: int = ROWS_MAX
    topics: list[str] = field(default_factory=list)
    """The topics that the client was found to have the right to read."""


@dataclass(frozen=True, slots=True)
class PreviewAnswer:
    id: str
    at_ms: int
    key: str = field(repr=False)
    """The public key of the worker."""
    sealed: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Preview:
    """Values are text; None stands for NULL."""

    columns: list[list[str]] = field(default_factory=list)
    """The name and the type of each."""
    rows: list[list[str | None]] = field(default_factory=list)
    error: str = ""


class Asking:
    """The side of the client, for one request."""

    def __init__(self, random: RandomBytes) -> None:
        self.id = random(16).hex()
        self._private = X25519PrivateKey.from_private_bytes(random(_KEY_BYTES))

    def request(
        self, name: str, node: str, at_ms: int, readable: Iterable[str] = ()
    ) -> PreviewRequest:
        """`readable` are the topics of the table that the client may read."""
        key, topics = _public(self._private), sorted(readable)
        return PreviewRequest(self.id, name, node, at_ms, key, topics=topics)

    def opened(self, answer: PreviewAnswer) -> Preview | None:
        """Returns the rows; None if this is not an answer to the request."""
        if answer.id != self.id:
            return None
        try:
            key = _secret(self._private, answer.key, self.id)
            content = AESGCM(key).decrypt(_NONCE, base64.b64decode(answer.sealed), None)
        except (ValueError, binascii.Error, InvalidTag):
            return None
        return decode(Preview, content)


def sealed(
    request: PreviewRequest, preview: Preview, at_ms: int, random: RandomBytes
) -> PreviewAnswer | None:
    """Returns the answer to a request; None if its key is not one."""
    private = X25519PrivateKey.from_private_bytes(random(_KEY_BYTES))
    try:
        key = _secret(private, request.key, request.id)
    except (ValueError, binascii.Error):
        return None
    content = AESGCM(key).encrypt(_NONCE, encode(preview), None)
    return PreviewAnswer(
        request.id, at_ms, _public(private), base64.b64encode(content).decode("ascii")
    )


def preview_of(event: Mapping[str, Any]) -> Preview:
    """Returns what a driver has found."""
    return Preview(
        [[str(part) for part in column] for column in event.get("columns") or ()],
        [[None if cell is None else str(cell) for cell in row] for row in event.get("rows") or ()],
        str(event.get("error") or ""),
    )


def table_named(graph: Mapping[str, Any], node: str) -> str:
    """Returns the name of a table in the graph of a run; empty if there is none."""
    for each in graph.get("nodes") or ():
        if each.get("id") == node and each.get("kind") == "table":
            return str(each.get("name") or "")
    return ""


def refused(graph: Mapping[str, Any], request: PreviewRequest) -> str:
    """Returns why a worker does not answer with rows; empty if it does. `graph` is that of the
    driver that would be asked."""
    node = request.node
    if not table_named(graph, node):
        return f"{node} is not a table of this pipeline"
    if unknown := unknown_sources(graph, node):
        return f"cannot check who may see the rows of {node}: {unknown}"
    if sources(graph, node) - set(request.topics):
        return (
            f"{node} reads topics for which the console did not check your rights: reload the "
            "page, and use a console of the same version as the workers"
        )
    return ""


def sources(graph: Mapping[str, Any], node: str) -> frozenset[str]:
    """Returns the topics from which the rows of a node are made, directly or by other nodes."""
    return frozenset(name for kind, name in _before(graph, node) if kind == "topic")


def unknown_sources(graph: Mapping[str, Any], node: str) -> str:
    """Returns why the topics from which a node is made are not all known; empty if they are."""
    nodes = {each.get("id") for each in graph["nodes"]}
    is_whole = all(nodes.issuperset((each.get("from"), each.get("to"))) for each in graph["edges"])
    if not (is_whole and graph.get("complete", True)):
        return "the graph of the pipeline is too large"
    for kind, name in _before(graph, node):
        if kind == "pattern":
            return f"it reads all topics that match {name}; name the topics with subscribe"
        if kind == "source" and name.startswith(UNKNOWN_TOPICS):
            return f"the topics of a source are not known ({name})"
    return ""


def _before(graph: Mapping[str, Any], node: str) -> list[tuple[str, str]]:
    """Returns the kinds and names of a node and of all nodes from which it is made, sorted."""
    kinds = {each["id"]: (str(each["kind"]), str(each["name"])) for each in graph["nodes"]}
    seen, left = {node}, [node]
    while left:
        at = left.pop()
        for edge in graph["edges"]:
            if edge["to"] == at and edge["from"] not in seen:
                seen.add(edge["from"])
                left.append(edge["from"])
    return sorted(kinds[each] for each in seen)


def _public(private: X25519PrivateKey) -> str:
    return base64.b64encode(private.public_key().public_bytes_raw()).decode("ascii")


def _secret(private: X25519PrivateKey, public: str, request_id: str) -> bytes:
    other = X25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
    info = f"penstock preview {request_id}".encode()
    return HKDF(SHA256(), _KEY_BYTES, None, info).derive(private.exchange(other))
