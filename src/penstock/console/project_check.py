"""Checks an uploaded project: `python -m penstock.console.project_check FOLDER JSON`.

The console runs this as a process of its own, with limits for memory and processor time: a file
that is hard to parse must not stop the console of other users. Nothing of the project is executed.
Reads `upload.zip` in the folder, writes `archive` beside it, and prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from penstock.spark.deployments.archive import UNPACKED_BYTES_MAX
from penstock.spark.deployments.deploy_plan import parse_schedule
from penstock.spark.deployments.project_files import prepare
from penstock.spark.deployments.zip_archive import unzip
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.project import SPEC_NAMES

UPLOAD: Final = "upload.zip"
ARCHIVE: Final = "archive"
_MEMORY_BYTES: Final = 3 << 30
_PROCESSOR_S: Final = 120
_ANSWER_CHARACTERS: Final = 900_000
"""A version with more flows does not fit into a record."""
NO_SPARK: Final = (
    'the console of this cluster cannot check projects: install "penstock[spark]" where it runs, '
    "or deploy with penstock pipeline deploy"
)


def main(arguments: Sequence[str]) -> int:
    folder, asked = Path(arguments[0]).resolve(), json.loads(arguments[1])
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_S, _PROCESSOR_S))
    # What is printed also counts.
    resource.setrlimit(resource.RLIMIT_FSIZE, (UNPACKED_BYTES_MAX, UNPACKED_BYTES_MAX))
    warnings.simplefilter("ignore")  # Python has one for each doubtful line of the project.
    try:
        answer = check(folder, asked)
    except PipelineError as error:
        answer = {"error": _without(folder, str(error))}
    except ImportError:
        answer = {"error": NO_SPARK}
    except OSError as error:
        reason = error.strerror or type(error).__name__
        answer = {"error": f"the console cannot read or write the files of the project: {reason}"}
    except (MemoryError, RecursionError):
        answer = {"error": "the files of the project are too large or too deeply nested"}
    text = json.dumps(answer)
    if len(text) > _ANSWER_CHARACTERS:
        text = json.dumps({"error": "the project has too many flows: divide it"})
    sys.stdout.write(text)
    return 0


def check(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the console has to know, or raises `PipelineError`."""
    root = unzip(folder / UPLOAD, folder / "project")
    files = prepare(_entry(root, asked["script"]))
    kind, when = asked["schedule"], asked["when"]
    try:
        schedule = parse_schedule(
            continuous=kind == "continuous",
            every=when if kind == "every" else None,
            cron=when if kind == "cron" else None,
        )
    except PipelineError as error:
        raise PipelineError(str(error).removeprefix("--")) from error
    (folder / ARCHIVE).write_bytes(files.archive)
    return {
        "name": files.name,
        "kind": files.kind,
        "entry": files.entry,
        "storage": files.storage,
        "requirements": files.requirements,
        "flows": files.flows,
        "unnamed": files.unnamed,
        "schedule": None if schedule is None else asdict(schedule),
    }


def _entry(root: Path, script: str) -> Path:
    """Returns the script, or the folder of the project."""
    if script:
        if not script.endswith(".py") or Path(script).name != script:
            raise PipelineError(
                f"{script!r} is not the name of a script: name a Python file in the outermost "
                "folder, such as job.py"
            )
        if not (root / script).is_file():
            raise PipelineError(f"there is no {script} in the outermost folder: name another file")
        return root / script
    if not any((root / name).is_file() for name in SPEC_NAMES):
        raise PipelineError(
            f"there is no {SPEC_NAMES[0]} in the outermost folder: choose the folder of a project, "
            "or name the script that is to run"
        )
    return root


def _without(folder: Path, text: str) -> str:
    """Leaves out where the console has unpacked the project."""
    for root in (folder / "project").glob("*"):
        text = text.replace(f"{root}/", "")
    return text.replace(f"{folder / 'project'}/", "").replace(f"{folder}/", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
