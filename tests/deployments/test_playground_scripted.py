"""The playground with slow, broken, long and unusual answers, which a real server rarely gives."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.browser import MISSING, chromium, chromium_path
from deployments.ingress.pages import RESPONSES
from tests.deployments.playground_page import PHONE, Visit, barriers, visiting
from tests.deployments.scripted_server import DECISION, DRAFTER, MODEL, Script, scripted

pytestmark = pytest.mark.skipif(chromium_path() is None, reason=MISSING)

GREETING = [["Hel", "lo", " there"], [",", " reader", "."]]
ARABIC = [["مر", "حبا", " بك"], [" في", " المت", "صفح"]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def script() -> Script:
    made = Script(GREETING)
    made.live.set()
    return made


@pytest.fixture
def visit(script: Script, browser: Browser) -> Iterator[Visit]:
    with scripted(script) as url, visiting(browser, url) as seen:
        seen.page.goto(url)
        yield seen


def ask(page: Page, text: str = "Greet me.") -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def await_end(page: Page) -> None:
    expect(page.locator(".facts").last).to_contain_text("per round", timeout=30_000)


def test_a_slow_server_is_waited_for_with_a_clock(visit: Visit, script: Script) -> None:
    script.pause_s = 2.5
    page = visit.page
    ask(page)
    expect(page.locator("#prompt")).to_have_value("")
    expect(page.locator(".facts")).to_have_text("waiting for the first token, 1 s")
    page.locator(".token").first.wait_for()
    expect(page.locator(".facts")).to_have_text("")
    await_end(page)
    page.wait_for_timeout(1500)
    expect(page.locator(".facts")).to_contain_text("6 tokens")


def test_a_request_before_the_first_numbers_names_the_model(visit: Visit, script: Script) -> None:
    script.live.clear()
    page = visit.page
    page.reload()
    ask(page)
    page.wait_for_timeout(500)
    assert script.asked == []
    script.live.set()
    await_end(page)
    assert [body["model"] for body in script.asked] == [MODEL]


def test_a_connection_that_breaks_keeps_the_text_and_can_be_tried_again(
    visit: Visit, script: Script
) -> None:
    script.breaks_after, script.pause_s = 1, 0.3  # a browser drops what it has not read by then
    visit.expected.append("ERR_INCOMPLETE_CHUNKED_ENCODING")
    page = visit.page
    ask(page)
    expect(page.get_by_role("alert")).to_contain_text("The connection broke off")
    expect(page.locator(".text")).to_have_text("Hello there")
    expect(page.locator(".text")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#prompt")).to_have_value("Greet me.")
    assert barriers(page) == []
    script.breaks_after = None
    page.get_by_role("button", name="Try again").click()
    await_end(page)
    assert page.locator(".turn").count() == 1
    expect(page.locator("#prompt")).to_have_value("")
    expect(page.locator("#server")).to_have_text(f"{MODEL}, ready")


def test_what_was_stopped_belongs_to_the_conversation(visit: Visit, script: Script) -> None:
    script.pause_s, script.rounds = 0.2, [["More", " and"]] * 50
    page = visit.page
    ask(page)
    page.locator(".token").first.wait_for()
    page.keyboard.press("Escape")
    expect(page.locator(".turn")).to_contain_text("Stopped.")
    text = page.locator(".text").text_content()
    script.pause_s, script.rounds = 0.0, GREETING
    ask(page, "Go on.")
    await_end(page)
    sent = [(one["role"], one["content"]) for one in script.asked[1]["messages"]]
    assert sent == [("user", "Greet me."), ("assistant", text), ("user", "Go on.")]


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (400, "context_length_exceeded", "Shorten the message"),
        (429, None, "The server is full"),
    ],
)
def test_a_refusal_says_what_to_do(visit: Visit, status: int, code: str | None, said: str) -> None:
    error = {"message": "set truncate_prompt_tokens", "code": code}
    visit.expected.append(str(status))
    page = visit.page
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=status, json={"error": error})
    )
    ask(page)
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.locator("#prompt")).to_have_value("Greet me.")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#welcome")).to_be_visible()


def test_a_server_that_is_gone_is_named(visit: Visit) -> None:
    page = visit.page
    expect(page.locator("#server")).to_have_text(f"{MODEL}, ready")
    page.context.set_offline(True)
    ask(page)
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    expect(page.locator("#server")).to_have_text("No answer")
    expect(page.locator("#watched")).to_have_text("numbers from before the server was gone")
    visit.expected.append("ERR_INTERNET_DISCONNECTED")


def test_text_from_right_to_left_begins_at_the_right(visit: Visit, script: Script) -> None:
    script.rounds = ARABIC
    page = visit.page
    ask(page, "قل مرحبا")
    await_end(page)
    text, first = page.locator(".text").bounding_box(), page.locator(".token").first.bounding_box()
    assert text is not None
    assert first is not None
    assert text["x"] + text["width"] - (first["x"] + first["width"]) < 10
    assert page.locator(".text").text_content() == "".join(map("".join, ARABIC))


def test_an_answer_of_1000_tokens_is_followed_and_can_be_walked_through(
    visit: Visit, script: Script
) -> None:
    script.rounds = [[" word"] * 4 + ["\n"]] * 200
    page = visit.page
    ask(page)
    await_end(page)
    expect(page.locator(".facts")).to_be_in_viewport()
    legend = page.locator(".legend b").all_text_contents()
    assert sorted(map(int, legend)) == [200, 800]
    expect(page.locator(".legend")).to_be_in_viewport()
    page.locator(".text").focus()
    page.keyboard.press("End")
    expect(page.locator("#round h2")).to_contain_text("in round 200")
    page.keyboard.press("Home")
    expect(page.locator("#round h2")).to_contain_text("in round 1")
    expect(page.locator(".token").first).to_be_in_viewport()
    page.locator(".legend li", has_text=DRAFTER).hover()
    assert page.locator(".token.stress").count() == 800


def test_an_answer_without_a_coloured_token_says_why(visit: Visit, script: Script) -> None:
    page = visit.page
    ask(page)
    await_end(page)
    expect(page.locator(".facts")).not_to_contain_text(DECISION)
    script.rounds = [["One"], [" by"], [" one"]]
    ask(page)
    expect(page.locator(".facts").last).to_contain_text(DECISION)


def test_on_a_phone_a_long_answer_can_be_stopped_where_it_is_read(
    visit: Visit, script: Script
) -> None:
    script.rounds, script.pause_s = [[" word"] * 20 + ["\n"]] * 100, 0.02
    page = visit.page
    page.set_viewport_size(PHONE)
    page.locator("#examples button").first.click()
    page.locator(".token").nth(600).wait_for()
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_in_viewport(ratio=1)
    stop.click()
    expect(page.locator(".turn")).to_contain_text("Stopped.")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_what_a_model_writes_stays_text(visit: Visit, script: Script) -> None:
    hostile = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
    script.rounds = [[hostile, hostile]]
    page = visit.page
    ask(page)
    await_end(page)
    page.locator(".token").first.hover()
    assert page.locator(".text").text_content() == hostile * 2
    assert page.locator("#turns img, #turns script, #round img, #round script").count() == 0
    assert page.title() == "Spindle playground"
    policy = str(RESPONSES["/"].headers["Content-Security-Policy"])
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
