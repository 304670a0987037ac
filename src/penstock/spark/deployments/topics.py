"""The internal topics of deployed pipelines, and the keys of their records. Pure.

    __penstock_pipelines          deployments and versions; compacted; transactions
    __penstock_pipeline_files     the archives of versions, in chunks; compacted
    __penstock_pipeline_status    the status of each deployment and worker; compacted
    __penstock_pipeline_history   events; kept for 90 days
    __penstock_pipeline_logs      lines that drivers print; kept for 7 days
    __penstock_pipeline_previews  requests for rows of tables, and answers; kept for an hour

Each has one partition, so that its records have one order. The rights are those of topics: who may
write to `__penstock_pipelines` may deploy, start and stop; who may read all of them may look.

A deployment is changed in a transaction with the transactional id `change_id(name)`. A client that
changes it initialises that id first, which ends a change in progress by someone else, then reads
the topic to its end, and then writes. So two changes of one deployment never mix.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "__penstock_pipeline"
"""The names of all of them begin with this."""
DEFINITIONS: Final = "__penstock_pipelines"
FILES: Final = "__penstock_pipeline_files"
STATUS: Final = "__penstock_pipeline_status"
HISTORY: Final = "__penstock_pipeline_history"
LOGS: Final = "__penstock_pipeline_logs"
PREVIEWS: Final = "__penstock_pipeline_previews"
"""A worker creates it. Everything else works without it."""

_DAY_MS: Final = 86_400_000
SETTINGS: Final = {
    DEFINITIONS: {"cleanup.policy": "compact"},
    FILES: {"cleanup.policy": "compact"},
    STATUS: {"cleanup.policy": "compact"},
    HISTORY: {"cleanup.policy": "delete", "retention.ms": str(90 * _DAY_MS)},
    LOGS: {"cleanup.policy": "delete", "retention.ms": str(7 * _DAY_MS)},
}
"""The settings with which the topics are created."""
PREVIEWS_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "3600000",
    "segment.ms": "3600000",
}
PREVIEW_REQUEST: Final = b"request/"
"""How the keys of requests begin."""

WORKERS_GROUP: Final = "__penstock_pipeline_workers"
"""The group whose members are the workers. Its assignments say who owns which pipeline."""
WORKERS_PROTOCOL: Final = "penstock-pipelines"


def deployment_key(name: str) -> bytes:
    return f"deployment/{name}".encode()


def version_key(name: str, number: int) -> bytes:
    return f"version/{name}/{number}".encode()


def chunk_key(archive: str, index: int) -> bytes:
    return f"{archive}/{index}".encode()


def status_key(name: str) -> bytes:
    return f"pipeline/{name}".encode()


def worker_key(worker: str) -> bytes:
    return f"worker/{worker}".encode()


def preview_request_key(name: str) -> bytes:
    return PREVIEW_REQUEST + name.encode()


def preview_answer_key(request_id: str) -> bytes:
    return f"answer/{request_id}".encode()


def change_id(name: str) -> str:
    """Returns the transactional id with which a deployment is changed."""
    return f"penstock-pipeline-{name}"
