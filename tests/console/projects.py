"""Pipeline projects, and zip archives of them, for tests of the form that deploys."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

SPEC = """name: {name}
storage: file:///tmp/unused
libraries:
  - glob:
      include: transformations/**
"""
CODE = """
from pyspark import pipelines as dp

@dp.table
def clicks():
    return spark.readStream.format("penstock").option("subscribe", "clicks").load()

@dp.table
def counts():
    return spark.readStream.table("clicks").groupBy("{key}").count()
"""


def project(name: str = "clicks", key: str = "user") -> dict[str, str]:
    """Returns the files of a project with one flow that keeps state. Its definition has `key`."""
    return {
        "spark-pipeline.yml": SPEC.format(name=name),
        "transformations/clicks.py": CODE.format(key=key),
    }


def packed(files: Mapping[str, str | bytes], folder: str = "") -> bytes:
    """Returns a zip archive. All paths begin with `folder`."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(folder + path, content)
    return written.getvalue()
