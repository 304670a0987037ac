"""`make docs` builds a site without warnings, and the reference has every public name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

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
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix("")
        page = site / "index.html" if name == Path("index") else site / name / "index.html"
        assert page.exists(), path


def test_the_reference_has_every_public_name(site: Path) -> None:
    pages = [page.read_text("utf-8") for page in (site / "api").rglob("index.html")]
    homes = penstock._HOMES
    missing = [name for name in homes if not any(f'id="{homes[name]}.{name}"' in p for p in pages)]
    assert missing == []


def test_examples_are_shown_as_python(site: Path) -> None:
    """The extension in docs/highlight_examples.py finds them."""
    page = (site / "api" / "errors" / "index.html").read_text("utf-8")
    assert page.count("<p>Example:</p>") >= 20
    python = '<p>Example:</p>\n<div class="highlight"><pre><span></span><code><span class='
    assert page.count(python) == page.count("<p>Example:</p>")
