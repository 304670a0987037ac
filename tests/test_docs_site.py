"""`make docs` builds a site without warnings, and the reference has every public name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import errors
from penstock.testing.slowness import patient
from public_examples import public_names

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(300),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix("")
        page = site / "index.html" if name == Path("index") else site / name / "index.html"
        assert page.exists(), path


def test_the_reference_has_every_public_name(site: Path) -> None:
    """Under the name by which users import it."""
    pages = [page.read_text("utf-8") for page in (site / "api").rglob("index.html")]
    names = {each.name for each in public_names() if not each.is_member}
    missing = {name for name in names if not any(f'id="{name}"' in page for page in pages)}
    # These are shown once, in `penstock` or in `penstock.errors`.
    shown_elsewhere = {f"penstock.{name}" for name in penstock.__all__ if name in errors.__all__}
    assert missing == shown_elsewhere | {"penstock.aio.Delivery"}


def test_examples_are_shown_as_python(site: Path) -> None:
    """The extension in docs/highlight_examples.py finds them."""
    page = (site / "api" / "errors" / "index.html").read_text("utf-8")
    assert page.count("<p>Example:</p>") >= 20
    python = '<p>Example:</p>\n<div class="highlight"><pre><span></span><code><span class='
    assert page.count(python) == page.count("<p>Example:</p>")
