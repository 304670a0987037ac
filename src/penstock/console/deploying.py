"""Deploys a project that a person has uploaded, with the rights of the user.

The browser sends the project twice: for the plan, which says what happens to each checkpoint, and
to deploy it. So the console keeps no files between the two. The deploy is refused if the files are
not those of the plan, or another version runs than the one that the plan was made for. A plan
changes nothing, so a read-only console may make one.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from penstock.console.deployments import Deployments, pipeline_errors
from penstock.console.errors import BadRequest, Conflict, NotAllowed, NotFound, NotLoggedIn
from penstock.console.link import Link
from penstock.console.uploads import CheckedProject, Upload, Uploads
from penstock.spark.deployments.archive import FILES_MAX
from penstock.spark.deployments.catalog_errors import ChangeConflict
from penstock.spark.deployments.catalog_view import ARCHIVE_BYTES_MAX
from penstock.spark.deployments.checkpoint_rules import decide
from penstock.spark.deployments.deploy_plan import DeployOptions, Known, compared, planned
from penstock.spark.deployments.generations import check_no_recompute
from penstock.spark.deployments.ignore_rules import ALWAYS
from penstock.spark.deployments.model import NAME
from penstock.spark.deployments.storage_place import check_storage

SCHEDULES: Final = ("", "continuous", "every", "cron")
_NOTE_CHARACTERS_MAX: Final = 1_000
_UNDECIDED: Final = ("not kept", "moved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the form says."""

    name: str
    """Empty: the name in the project."""
    is_new: bool
    """Whether the user wants a new deployment, and not a new version."""
    script: str
    schedule: str
    """One of `SCHEDULES`. Empty: as before."""
    when: str
    note: str = ""
    stopped: bool = False
    expected: int = 0
    """The version that ran when the plan was made."""
    files: str = ""
    """The SHA-256 of the files that the plan was made for. Empty: any files."""
    reset: Sequence[str] = ()
    keep: Sequence[str] = ()

    def check(self) -> None:
        """Raises `BadRequest`. What is in the project is checked later."""
        if self.schedule not in SCHEDULES:
            known = ", ".join(each for each in SCHEDULES if each)
            raise BadRequest(f"schedule must be one of {known}, not {self.schedule!r}")
        if self.schedule in ("every", "cron") and not self.when.strip():
            raise BadRequest("say when rounds begin: 10m, or '0 3 * * *' for cron")
        if len(self.note) > _NOTE_CHARACTERS_MAX:
            raise BadRequest(f"the note has more than {_NOTE_CHARACTERS_MAX:,} characters")
        if self.name:
            _check_name(self.name)


class Deploying:
    """`is_closed` says whether the user has signed out."""

    def __init__(
        self, link: Link, deployments: Deployments, uploads: Uploads, is_closed: Callable[[], bool]
    ) -> None:
        self._link = link
        self._is_closed = is_closed
        self._deployments = deployments
        self._uploads = uploads

    @staticmethod
    def limits() -> dict[str, Any]:
        """Returns what a browser need not send, and how much it may send."""
        return {"bytes_max": ARCHIVE_BYTES_MAX, "files_max": FILES_MAX, "ignored": ALWAYS}

    async def plan(self, wish: Wish, upload: Upload) -> dict[str, Any]:
        """Returns what a deploy would do to each checkpoint."""
        wish.check()
        if hidden := self._deployments.hidden():
            raise NotAllowed(hidden)
        async with self._checked(wish, upload) as project:
            return self._plan(wish, project)

    def _plan(self, wish: Wish, project: CheckedProject) -> dict[str, Any]:
        known, name, files = self._deployments.known_all(), _name(wish, project), project.files
        _check_new(known, name, is_new=wish.is_new)
        found = compared(known, name, files.flows)
        open_flows = [each for each in found.changes if each.outcome in _UNDECIDED]
        others = [each for each in found.changes if each.outcome not in _UNDECIDED]
        with pipeline_errors():
            if found.version:
                check_no_recompute(known.deployments[name])
            check_storage(files.storage, name, known.deployments)
            told = decide(others, (), (), found.pending).texts()
        return {
            "name": name,
            "version": found.version,
            "bytes": len(files.archive),
            "files": _digest(project),
            "flows": told,
            "open": [asdict(each) for each in open_flows],
            "unnamed": files.unnamed,
            "workers": self._deployments.live_workers(),
        }

    async def deploy(self, wish: Wish, upload: Upload) -> dict[str, Any]:
        wish.check()
        self._link.check_writable(f"deploy pipeline {wish.name}".rstrip())
        async with self._checked(wish, upload) as project:
            return await self._deploy(wish, project)

    async def _deploy(self, wish: Wish, project: CheckedProject) -> dict[str, Any]:
        name = _name(wish, project)
        if wish.files and wish.files != _digest(project):
            raise Conflict(
                "the files have changed since the plan: look again at what would happen, and then "
                "deploy"
            )
        if self._is_closed():
            raise NotLoggedIn("you have signed out: nothing was deployed")
        what = f"deploy pipeline {name}"
        async with self._deployments.catalog(what, create=True) as catalog:
            await catalog.caught_up()
            _check_new(catalog, name, is_new=wish.is_new)
            plan, _ = planned(
                catalog,
                name,
                project.files,
                DeployOptions(
                    schedule=project.schedule,
                    note=wish.note,
                    stopped=wish.stopped,
                    reset=wish.reset,
                    keep=wish.keep,
                ),
            )
            if plan.expected_version != wish.expected:
                raise ChangeConflict(name)
            made = await catalog.deploy(plan)
            workers = len(catalog.live_workers())
        return {"name": name, "version": made.version, "workers": workers}

    @asynccontextmanager
    async def _checked(self, wish: Wish, upload: Upload) -> AsyncIterator[CheckedProject]:
        user, when = self._link.user or "", wish.when.strip()
        async with self._uploads.checked(upload, user, wish.script, wish.schedule, when) as project:
            yield project


def _digest(project: CheckedProject) -> str:
    return hashlib.sha256(project.files.archive).hexdigest()


def _name(wish: Wish, project: CheckedProject) -> str:
    name = wish.name or project.files.name
    _check_name(name)
    return name


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise BadRequest(
            f"{name[:100]!r} cannot be the name of a deployment: give one of at most 64 lower-case "
            "letters, digits, dots, underscores and hyphens"
        )


def _check_new(known: Known, name: str, *, is_new: bool) -> None:
    old = known.deployments.get(name)
    if is_new and old is not None:
        raise BadRequest(
            f"{name} is deployed already: deploy a new version from its page, or give another name"
        )
    if not is_new and old is None:
        raise NotFound(f"there is no deployed pipeline {name}: it was deleted, or cannot be seen")
