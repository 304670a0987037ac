"""Tests signing in, the access page and the audit page in a browser, with a secured cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from console.browser.conftest import KEEP_TOASTS, PATIENCE_MS, note
from console.openid import Provider, running_provider
from console.secured import (
    BOB_PASSWORD,
    Secured,
    oauth_options,
    oauth_settings,
    secured_cluster,
)
from penstock.runtime import SystemClock
from penstock.testing.slowness import patient

PASSWORD = "a password of carol"


@pytest.fixture(scope="module")
def provider(chromium: Any) -> Iterator[Provider]:
    with running_provider() as found:
        yield found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    settings = oauth_settings(directory, provider)
    with secured_cluster(directory / "data", settings) as found:
        yield found


@pytest.fixture(scope="module")
def url(secured: Secured) -> Iterator[str]:
    with secured.console() as found:
        yield found


@pytest.fixture
def page(chromium: Any, url: str) -> Iterator[Any]:
    """Opens a page on which nobody has signed in."""
    context = chromium.new_context()
    context.add_init_script(KEEP_TOASTS)
    opened = context.new_page()
    opened.set_default_timeout(patient(PATIENCE_MS))
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda message: note(message, wrong))
    opened.goto(url)
    try:
        yield opened
        assert not wrong
    finally:
        context.close()


def sign_in(page: Any, user: str, password: str) -> None:
    page.locator("#sign-in input[name=user]").fill(user)
    page.locator("#sign-in input[name=password]").fill(password)
    page.locator("#sign-in button").click()


def submit(page: Any, button: str, **values: str) -> None:
    """Fills in the dialog that is open, and waits until it is closed."""
    dialog = page.locator("dialog").last
    for name, value in values.items():
        field = dialog.locator(f"[name={name}]")
        if field.evaluate("each => each.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    dialog.get_by_role("button", name=button, exact=True).click()
    dialog.wait_for(state="detached")


def test_signing_in_and_out(page: Any) -> None:
    """A wrong password is told. Escape does not close the form. After signing out, it is back."""
    page.keyboard.press("Escape")
    sign_in(page, "bob", "wrong")
    page.get_by_text("does not accept this login").wait_for()
    sign_in(page, "bob", BOB_PASSWORD)
    page.locator("#user", has_text="bob").wait_for()
    page.locator("#standing.good").wait_for()
    page.reload()
    page.locator("#user", has_text="bob").wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.locator("#sign-in").wait_for()
    assert "bob" not in page.locator("#user").inner_text()


def test_a_page_that_is_opened_during_the_sign_in_does_not_ask_again(page: Any) -> None:
    """The form stays until the console has answered. Then the page opens that was asked for."""
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/api/session", hold)
    sign_in(page, "bob", BOB_PASSWORD)
    page.get_by_role("button", name="Signing in").wait_for()
    page.evaluate("location.hash = '#/topics'")
    page.locator("#sign-in form").evaluate("each => each.requestSubmit()")
    assert page.locator("#sign-in").count() == 1
    assert len(held) == 1
    held[0].continue_()
    page.unroute("**/api/session")
    page.locator("#user", has_text="bob").wait_for()
    page.get_by_role("heading", name="Topics").wait_for()
    assert page.locator("#sign-in").count() == 0


def test_requests_that_are_refused_together_ask_once(page: Any) -> None:
    """The session ended while several requests were under way."""
    sign_in(page, "bob", BOB_PASSWORD)
    page.locator("#user", has_text="bob").wait_for()
    page.context.clear_cookies()
    page.evaluate(
        """() => { import("/static/api.js").then(({ get }) => {
        for (let each = 0; each < 3; each++) get(`/api/groups?each=${each}`).catch(() => {});
        }); }"""
    )
    page.locator("#sign-in").first.wait_for()
    asked = "performance.getEntriesByType('resource').filter((e) => e.name.includes('each='))"
    page.wait_for_function(f"() => {asked}.length === 3")
    page.evaluate("fetch('/api/session', { method: 'POST', body: '{}' }).then((a) => a.text())")
    assert page.locator("#sign-in").count() == 1
    sign_in(page, "bob", BOB_PASSWORD)
    page.locator("#user", has_text="bob").wait_for()


def test_signing_in_at_a_provider(page: Any, secured: Secured, provider: Provider) -> None:
    """The provider sends the browser back, and the console is open."""
    with secured.console(*oauth_options(provider)) as url:
        page.goto(url)
        page.get_by_role("link", name="Sign in with the provider").click()
        page.locator("#user", has_text="dana").wait_for()
        page.locator("#standing.good").wait_for()
        assert page.url.startswith(url)
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("link", name="Sign in with the provider").wait_for()


def test_a_user_without_rights_is_told_so(page: Any) -> None:
    sign_in(page, "bob", BOB_PASSWORD)
    page.locator("#hidden", has_text="do not have the rights to see everything").wait_for()
    page.get_by_role("link", name="Access", exact=True).click()
    page.locator("#users .error", has_text="not allowed").wait_for()


def test_the_admin_manages_users_rules_roles_and_quotas(page: Any, secured: Secured) -> None:
    """The audit page shows what was done, by whom."""
    sign_in(page, "admin", secured.admin_password)
    page.get_by_role("link", name="Access", exact=True).click()
    page.get_by_role("button", name="Add user").click()
    submit(page, "Add", user="carol", password=PASSWORD, again=PASSWORD)
    page.locator("#users td", has_text="carol").wait_for()

    page.get_by_role("link", name="Access rules").click()
    page.get_by_role("button", name="Add rule").click()
    submit(page, "Add", user="carol", permission="deny", operation="write", resource="topic:pay-*")
    page.locator("#acls tr", has_text="topic:pay-*").get_by_text("deny").wait_for()

    page.get_by_role("link", name="Roles").click()
    page.get_by_role("button", name="Grant a role").click()
    submit(page, "Grant", user="carol", role="reader", resource="topic:orders")
    page.locator("#roles tr", has_text="carol").get_by_text("topic:orders").wait_for()

    page.get_by_role("link", name="Quotas").click()
    page.get_by_role("button", name="Set a quota").click()
    submit(page, "Set", user="carol", key="producer_byte_rate", limit="1048576")
    page.locator("#quotas tr", has_text="user carol").get_by_text("1,048,576").wait_for()

    page.get_by_role("link", name="Check").click()
    page.get_by_label("User").fill("carol")
    page.get_by_label("Resource, such as topic:orders").fill("topic:orders")
    page.get_by_role("button", name="Check").click()
    page.locator("#access-answer", has_text="yes").get_by_text("role reader").wait_for()

    page.get_by_role("link", name="Audit").click()
    row = page.locator("#audit-events tr", has_text="role.grant").first
    clock = SystemClock()
    end = clock.monotonic() + patient(60)
    while not row.count():
        assert clock.monotonic() < end, "the audit page does not show the grant"
        # A question that is asked before the last one was answered makes that answer outdated.
        with page.expect_response("**/api/audit?*"):
            page.get_by_role("button", name="Reload").click()
        page.wait_for_timeout(200)
    assert "admin" in row.inner_text()


def test_what_a_name_holds_is_text_not_a_page(page: Any, secured: Secured) -> None:
    """A user name with HTML in it is shown as it is."""
    with secured.admin() as admin:
        admin.alter_client_quotas(
            {"user": "<img src=x onerror=alert(1)>"}, set_values={"producer_byte_rate": 1.0}
        )
    sign_in(page, "admin", secured.admin_password)
    page.goto(page.url.split("#")[0] + "#/access/quotas")
    page.locator("#quotas td", has_text="<img src=x onerror=alert(1)>").wait_for()
    assert page.locator("#quotas img").count() == 0
