"""The playground in a real browser, against one application over Serve."""

import json
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from benchmarks.browser import MISSING, chromium, chromium_path
from deployments.ingress.pages import RESPONSES
from tests.deployments.playground_page import DESKTOP, PHONE, TABLET, Visit, barriers, visiting
from tests.deployments.serving import ARGS, URL, application, eventually

pytestmark = pytest.mark.skipif(chromium_path() is None, reason=MISSING)

KEY = "key-of-a-visitor"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
DRAFTERS = {"tiny", "ngram"}
PROMPT = "Count to 7."


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    with application({**ARGS, "api_keys": {"visitor": KEY}, "operators": ["visitor"]}) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def is_empty() -> bool:
    numbers = httpx.get(f"{URL}/spindle/live", headers=AUTHORIZED).json()["replicas"][0]
    return bool(numbers["running"] == numbers["waiting"] == 0)


def opened(visit: Visit, key: str = KEY) -> Page:
    visit.page.goto(URL)
    visit.page.get_by_label("API key").fill(key)
    visit.page.keyboard.press("Tab")
    return visit.page


def answered(visit: Visit, prompt: str = PROMPT) -> Page:
    """The page when the answer to a prompt is complete."""
    page = opened(visit)
    expect(page.locator("#server")).to_have_text("target, ready")
    page.get_by_label("Message", exact=True).fill(prompt)
    page.keyboard.press("Enter")
    expect(page.locator(".facts").last).to_contain_text("per round", timeout=60_000)
    return page


@pytest.fixture
def visit(app: str, browser: Browser) -> Iterator[Visit]:
    with visiting(browser, app) as seen:
        # The browser itself reports the answer 401 to the first question, before a key was entered.
        seen.expected.append("401")
        yield seen


def test_each_token_has_the_colour_of_its_drafter(visit: Visit) -> None:
    page = answered(visit)
    body = {"model": "target", "messages": [{"role": "user", "content": PROMPT}]}
    asked = {**body, "temperature": 0, "max_tokens": 192}
    answer = httpx.post(f"{URL}/v1/chat/completions", json=asked, headers=AUTHORIZED, timeout=60)
    choice = answer.json()["choices"][0]
    assert page.locator(".text").text_content() == choice["message"]["content"]
    legend = page.locator(".legend li").evaluate_all(
        "all => all.map(one => [one.childNodes[1].data.trim(), one.querySelector('b').innerText])"
    )
    counts = {name: int(number) for name, number in legend if int(number)}
    assert counts.keys() - {"the target itself"} <= DRAFTERS
    assert counts["tiny"] > 2
    assert sum(counts.values()) == answer.json()["usage"]["completion_tokens"]
    for name, drawn in (("tiny", ".of-0"), ("the target itself", ".of-target")):
        assert page.locator(f".token{drawn}").count() == counts[name]
    colours = page.locator(".token").evaluate_all(
        "tokens => tokens.map(one => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(colours)) == len(counts)


def test_a_race_ends_with_both_clocks_and_the_same_text(visit: Visit) -> None:
    page = opened(visit)
    page.get_by_label("Message", exact=True).fill(PROMPT)
    page.get_by_role("button", name="Race with").click()
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("with speculation, and the same text", timeout=60_000)
    texts = page.locator(".runner .text").all_text_contents()
    assert texts[0] == texts[1] != ""
    clocks = [float(text.removesuffix(" s")) for text in page.locator(".clock").all_text_contents()]
    assert min(clocks) > 0
    plain = page.locator(".runner").nth(1)
    assert plain.locator(".token:not(.of-target)").count() == 0
    page.get_by_role("button", name="Replay side by side").click()
    expect(page.get_by_role("button", name="Replay side by side")).to_be_enabled(timeout=60_000)
    assert page.locator(".runner .text").all_text_contents() == texts


def test_everything_works_by_keyboard_alone(visit: Visit) -> None:
    page = opened(visit)
    expect(page.locator("#server")).to_have_text("target, ready")
    press = page.keyboard.press

    def go_to(selector: str, key: str = "Tab") -> None:
        for _ in range(40):
            if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                return
            press(key)
        pytest.fail(f"Tab never reaches {selector}")

    go_to("#examples button")
    press("Enter")
    expect(page.locator(".facts").last).to_contain_text("per round", timeout=60_000)
    go_to(".text", "Shift+Tab")
    press("Home")
    expect(page.locator("#round h2")).to_contain_text("in round 1")
    press("ArrowDown")
    expect(page.locator("#round h2")).to_contain_text("in round 2")
    press("End")
    assert page.locator(".token.chosen").count() == 1
    go_to("#settings summary")
    press("Enter")
    go_to("#temperature")
    press("ArrowUp")
    assert page.locator("#temperature").input_value() == "0.1"
    go_to("#drafter", "Shift+Tab")
    page.keyboard.type("off")
    go_to("#prompt", "Shift+Tab")
    page.keyboard.type("Once more.")
    press("Enter")
    expect(page.locator(".turn").nth(1).locator(".facts")).to_contain_text("1.0 per round")
    go_to("#new")
    press("Enter")
    expect(page.locator("#welcome")).to_be_visible()
    expect(page.locator("#round h2")).to_have_text("How a token came about")


def test_stop_ends_an_answer_and_frees_its_place(visit: Visit) -> None:
    page = opened(visit)
    page.get_by_text("Settings").click()
    page.get_by_label("Max tokens").fill("1500")
    page.get_by_label("Temperature").fill("2")
    page.get_by_label("Message", exact=True).fill("Write without end.")
    page.keyboard.press("Enter")
    page.locator(".token").first.wait_for()
    page.keyboard.press("Escape")
    expect(page.locator(".turn")).to_contain_text("Stopped.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    eventually(is_empty, "the request has left its replica")


def test_a_narrow_window_shows_everything_without_scrolling_sideways(visit: Visit) -> None:
    page = answered(visit)
    for size in (PHONE, TABLET, DESKTOP):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        page.get_by_role("button", name="Send").scroll_into_view_if_needed()
        expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
    page.set_viewport_size(PHONE)
    page.locator(".token").first.click()
    expect(page.locator("#round h2")).to_be_in_viewport()
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#round h2")).not_to_be_in_viewport()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_barrier(visit: Visit, scheme: str) -> None:
    visit.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of its literals
    page = opened(visit)
    expect(page.locator("#server")).to_have_text("target, ready")
    assert barriers(page) == []
    page = answered(visit)
    page.locator(".token.of-0").first.hover()
    page.get_by_text("Settings").click()
    assert barriers(page) == []
    page.set_viewport_size(PHONE)
    assert barriers(page) == []


def test_the_strip_shows_who_is_busy_and_whose_drafts_are_accepted(visit: Visit) -> None:
    page = answered(visit)
    hosts = page.locator("#hosts li")
    expect(hosts).to_have_count(3)
    assert [text.rstrip("0123456789 <%") for text in hosts.all_text_contents()] == [
        "verifier",
        "tiny",
        "ngram",
    ]
    expect(page.locator("#numbers")).to_contain_text("from tiny")
    painted = (
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, 20).data.some(x => x)"
    )
    assert page.locator("#gantt").evaluate(painted)
    page.get_by_text("Live", exact=True).click()
    page.wait_for_timeout(1500)
    before = sum("live" in url for url in visit.urls)
    page.wait_for_timeout(2500)
    assert sum("live" in url for url in visit.urls) == before, "a closed strip asks for nothing"


def test_the_strip_shows_what_a_drafter_has_learned(visit: Visit) -> None:
    page = opened(visit)
    expect(page.locator("#server")).to_have_text("target, ready")
    expect(page.locator("#numbers")).not_to_contain_text("learned")
    learned = {"drafter": "tiny", "version": 3, "tokens": 900, "share": 0.1}

    def add_learning(route: Route) -> None:
        numbers = route.fetch().json()
        numbers["replicas"][0]["learning"] = {**learned, "served": 1.3, "candidate": 0}
        route.fulfill(json=numbers)

    page.route("**/spindle/live*", add_learning)
    shown = page.locator("#numbers")
    expect(shown).to_contain_text("tiny, served1.30 tokens/forward, version 3")
    expect(shown).to_contain_text("tiny, learning– tokens/forward, 900 learned, 10 % CPU")
    page.unroute_all(behavior="wait")


def test_a_wrong_key_is_asked_for_again(visit: Visit) -> None:
    page = opened(visit, key="wrong")
    expect(page.locator("#server")).to_have_text("API key needed")
    page.get_by_label("Message", exact=True).fill(PROMPT)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("valid API key")
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type(KEY)
    page.keyboard.press("Tab")
    expect(page.locator("#server")).to_have_text("target, ready")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".facts").last).to_contain_text("per round", timeout=60_000)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [(400, "context_length_exceeded", "Shorten the message"), (429, None, "The server is full")],
)
def test_a_refusal_says_what_to_do(visit: Visit, status: int, code: str | None, said: str) -> None:
    error = {"message": "shorten the prompt", "code": code}
    visit.expected.append(str(status))
    page = opened(visit)
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=status, json={"error": error})
    )
    page.get_by_label("Message", exact=True).fill(PROMPT)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.locator("#prompt")).to_have_value(PROMPT)


def test_what_a_model_writes_stays_text(visit: Visit) -> None:
    hostile = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
    node = {"id": 1, "text": hostile, "parent": None, "confidence": 0.8, "drafters": ["tiny"]}
    trace = {
        **{"attempt": 1, "round": 1, "drafted": 1, "verified": 1, "accepted": 1},
        **{"draft_s": 0.001, "verify_s": 0.02, "nodes": [{**node, "accepted": True}]},
        "tokens": [{"id": 1, "text": hostile, "node": place} for place in (0, None)],
    }
    statistics = {
        **{"ttft_s": 0.1, "tpot_s": 0.01, "rounds": 1, "drafted": 1, "seed": 1, "replica": "r"},
        "decision": hostile,
    }
    choice = {
        **{"index": 0, "delta": {"content": hostile * 2}, "finish_reason": "stop"},
        "spindle": {"trace": trace, **statistics},
    }
    body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
    visit.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=body),
    )
    page = answered(visit)
    page.locator(".token").first.hover()
    assert page.locator(".text").text_content() == hostile * 2
    assert page.locator("#turns img, #turns script, #round img, #round script").count() == 0
    assert page.title() == "Spindle playground"
    policy = str(RESPONSES["/"].headers["Content-Security-Policy"])
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
