"""Tests the charts in a browser: hover, range, zoom, gaps, themes, and their text alternative.

Most tests answer the page's requests for figures themselves, so that they know what must be drawn.
The fixture `page` fails a test whose page violates its content security policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from console.browser.conftest import Send, until_shown
from penstock import Admin

Lines = Mapping[str, Sequence[float | None]]
STEPS = 150
NOW_MS = 1_800_000_000_000
FROM_MS = NOW_MS - (STEPS - 1) * 2_000
EPOCH = {"hour": "2-digit", "minute": "2-digit", "second": "2-digit"}

COLUMNS = """(holder, variable) => {
  // The columns of the picture, from 0 to 1 over the plotted area, that have this colour.
  const canvas = holder.querySelector("canvas");
  const over = holder.querySelector(".u-over");
  const ratio = canvas.width / canvas.clientWidth;
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  probe.fillRect(0, 0, 1, 1);
  const wanted = probe.getImageData(0, 0, 1, 1).data;
  const left = Math.round(over.offsetLeft * ratio), width = Math.round(over.clientWidth * ratio);
  const seen = canvas.getContext("2d").getImageData(left, 0, width, canvas.height).data;
  const found = new Set();
  for (let at = 0; at < seen.length; at += 4) {
    const near = [0, 1, 2].every((part) => Math.abs(seen[at + part] - wanted[part]) < 30);
    if (near && seen[at + 3] > 200) found.add(((at / 4) % width) / width);
  }
  return [...found];
}"""


@pytest.fixture
def show(page: Any, url: str) -> Callable[[Lines], None]:
    """`show(lines)` opens the overview with these records per second."""

    def open_page(lines: Lines) -> None:
        def answer(route: Any) -> None:
            asked = parse_qs(urlsplit(route.request.url).query)
            figures = {"records": {"lines": lines, "of": 20 if len(lines) == 8 else len(lines)}}
            found = {
                "range_s": int(asked["range"][0]), "step_ms": 2_000, "from_ms": FROM_MS,
                "now_ms": NOW_MS, "steps": STEPS, "full": False, "figures": figures,
            }  # fmt: skip
            route.fulfill(content_type="application/json", body=json.dumps(found))

        page.route("**/api/history?*", answer)
        page.goto(f"{url}#/brokers")
        page.goto(f"{url}#/")
        page.locator("#written figcaption").wait_for()

    return open_page


def columns(page: Any, variable: str = "--c0") -> list[float]:
    found: list[float] = page.locator("#written .plot").evaluate(COLUMNS, variable)
    return found


def place(page: Any, share: float) -> dict[str, float]:
    """Returns a place in the chart; `share` is 0 at its left side and 1 at its right side."""
    box = page.locator("#written .u-over").bounding_box()
    return {"x": box["width"] * share, "y": box["height"] / 2}


def hover(page: Any, share: float) -> None:
    """Moves the pointer over the chart, wherever it is by then: problems of the cluster are shown
    above it."""
    page.locator("#written .u-over").hover(position=place(page, share))


def legend(page: Any, text: str | re.Pattern[str]) -> None:
    page.locator("#written .legend", has_text=text).wait_for()


def test_hovering_shows_all_values_at_that_time(page: Any, show: Callable[[Lines], None]) -> None:
    """With the local time. Without the pointer, the last values are shown."""
    show({"read": [1.0] * 75 + [2.0] * 75, "written": [300.0] * 75 + [400.0] * 75})
    legend(page, re.compile(r"now\s*read 2/s\s*written 400/s"))
    hover(page, 0.25)
    legend(page, re.compile(r"read 1/s\s*written 300/s"))
    shown = page.locator("#written .legend span").first.inner_text()
    local = page.evaluate(
        """([from, steps, how]) => Array.from({ length: steps }, (_, at) =>
             new Date(from + at * 2000).toLocaleTimeString(undefined, how))""",
        [FROM_MS, STEPS, EPOCH],
    )
    assert 30 <= local.index(shown) <= 45
    page.mouse.move(0, 0)
    legend(page, re.compile(r"now\s*read 2/s"))


def test_a_gap_is_a_gap(page: Any, show: Callable[[Lines], None]) -> None:
    """Nothing is drawn in it, and hovering says that there is no value."""
    show({"written": [100.0] * 50 + [None] * 50 + [100.0] * 50})
    legend(page, "written 100/s")
    found = columns(page)
    assert [each for each in found if each < 0.3]
    assert [each for each in found if each > 0.7]
    assert not [each for each in found if 0.35 < each < 0.65]
    hover(page, 0.5)
    legend(page, "written \N{EN DASH}")


def test_no_data_and_a_single_value(page: Any, show: Callable[[Lines], None]) -> None:
    """No data is a sentence, and a single value is a point."""
    show({})
    page.locator("#written", has_text="No data in this time range yet").wait_for()
    assert "No data" in page.locator("#written .plot").get_attribute("aria-label")
    show({"written": [None] * 100 + [7.0] + [None] * 49})
    page.locator("#written canvas").wait_for()
    found = columns(page)
    assert found
    assert max(found) - min(found) < 0.05


def test_the_picture_has_a_text_alternative(page: Any, show: Callable[[Lines], None]) -> None:
    """For screen readers: the last value, and the lowest and highest of the time range."""
    show({"written": [1_500.0] * 100 + [20.0] * 49 + [35.5]})
    page.get_by_role(
        "img", name="Records per second, last 5 min. written: last 35.5/s, between 20/s and 1,500/s"
    ).wait_for()


def test_dragging_zooms_all_charts(page: Any, show: Callable[[Lines], None]) -> None:
    """A double click, or a button, shows the whole range again."""
    show({"written": [None] * 50 + [100.0] * 50 + [None] * 50})
    page.locator("#written canvas").wait_for()
    assert max(columns(page)) - min(columns(page)) < 0.4
    whole = page.get_by_role("button", name="Whole range")
    assert not whole.is_visible()
    for back in (lambda: page.locator("#written .u-over").dblclick(), whole.click):
        over = page.locator("#written .u-over")
        over.drag_to(over, source_position=place(page, 0.4), target_position=place(page, 0.6))
        whole.wait_for()
        page.wait_for_function(f"(holder) => ({COLUMNS})(holder, '--c0').length > 300",
                               arg=page.locator("#written .plot").element_handle())  # fmt: skip
        assert max(columns(page)) - min(columns(page)) > 0.9
        back()
        whole.wait_for(state="hidden")
    page.wait_for_function(f"(holder) => ({COLUMNS})(holder, '--c0').every((at) => at < 0.7)",
                           arg=page.locator("#written .plot").element_handle())  # fmt: skip


def test_both_themes_have_their_colours(page: Any, show: Callable[[Lines], None]) -> None:
    """The lines are drawn again when the theme changes."""
    page.emulate_media(color_scheme="light")
    show({"written": [100.0] * STEPS})
    page.locator("#written canvas").wait_for()
    assert columns(page)
    light = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--c0')")
    page.get_by_role("button", name="Theme").click()
    dark = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--c0')")
    assert dark != light
    page.wait_for_function(f"(holder) => ({COLUMNS})(holder, '--c0').length > 0",
                           arg=page.locator("#written .plot").element_handle())  # fmt: skip


def test_lines_can_be_hidden_and_are_limited(page: Any, show: Callable[[Lines], None]) -> None:
    """The legend has a button for each line, and says how many lines are not shown."""
    show({f"line {number}": [float(number + 1)] * STEPS for number in range(8)})
    legend(page, "the 8 largest of 20")
    assert columns(page, "--c7")
    page.locator("#written").get_by_role("button", name="line 7").click()
    page.wait_for_function(f"(holder) => ({COLUMNS})(holder, '--c7').length === 0",
                           arg=page.locator("#written .plot").element_handle())  # fmt: skip


def test_the_chart_is_as_wide_as_its_panel(page: Any, show: Callable[[Lines], None]) -> None:
    """Also after the window was resized."""
    show({"written": [100.0] * STEPS})
    page.locator("#written canvas").wait_for()
    for width in (1_400, 500):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function("""() => {
          const holder = document.querySelector("#written .plot");
          return Math.abs(holder.querySelector(".uplot").offsetWidth - holder.clientWidth) <= 1;
        }""")


def test_the_time_range_is_chosen_and_remembered(page: Any, url: str) -> None:
    """The server answers for the range that the page asks for."""
    page.goto(f"{url}#/brokers")
    chosen = page.get_by_role("button", name="6 h")
    with page.expect_response(re.compile(r"/api/history\?.*range=21600")) as answer:
        chosen.click()
    found = answer.value.json()
    assert (found["step_ms"], found["steps"]) == (30_000, 720)
    assert chosen.get_attribute("aria-pressed") == "true"
    with page.expect_response(re.compile(r"/api/history\?kind=cluster.*range=21600")):
        page.goto(f"{url}#/")
    assert page.get_by_role("button", name="6 h").get_attribute("aria-pressed") == "true"


def test_pages_of_topics_and_brokers_have_charts(
    page: Any, url: str, admin: Admin, send: Send
) -> None:
    """Drawn from what is written to a real cluster."""
    admin.create_topic("charted", partitions=1)
    page.goto(f"{url}#/topics/charted")
    page.get_by_role("link", name="Charts").click()
    wanted = [
        page.locator("#topic-records .legend", has_text=re.compile(r"written [1-9]")),
        page.locator("#topic-bytes .legend", has_text=re.compile(r"written [1-9]")),
        page.locator("#topic-size .legend", has_text=re.compile(r"one replica [1-9]")),
    ]
    until_shown(page, wanted, lambda: send("charted", *[b"v" * 100] * 50), 200, "what is not drawn")
    page.goto(f"{url}#/brokers")
    for each in ("broker-bytes", "broker-records", "broker-answers", "broker-disks"):
        page.locator(f"#{each} .legend", has_text="broker 2").wait_for()
