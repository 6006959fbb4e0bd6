"""The page at / in a real browser: every kind of model, light, dark and on a phone, without a complaint."""

from __future__ import annotations

import time

import pytest
from browser import Browser
from desks import desk_of
from plain_fleet import PlainModel
from running import running

from anynpu.apps.serve.page import FILES
from anynpu.apps.serve.site import build_app
from anynpu.apps.web.app import Policy

UNNAMED = """
[...document.querySelectorAll('input, select, textarea, button')]
  .filter((each) => !(each.labels && each.labels.length) && !each.ariaLabel && !each.textContent.trim())
  .map((each) => each.id)
"""
CONTRAST = """(() => {
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (each) => {
    const color = getComputedStyle(each).backgroundColor;
    return /, 0\\)$/.test(color) && each.parentElement ? ground(each.parentElement) : color;
  };
  const kinds = 'p, label, a, button, h1, h2, span, td, th, select, textarea, summary';
  const shown = [...document.querySelectorAll(kinds)]
    .filter((each) => each.offsetParent && each.textContent.trim() && !each.disabled);
  return Math.min(...shown.map((each) => {
    const pair = [light(getComputedStyle(each).color), light(ground(each))].sort((a, b) => a - b);
    return (pair[1] + 0.05) / (pair[0] + 0.05);
  }));
})()"""
"""The lowest contrast of a text that is shown, as WCAG counts it."""
CHANGE = (
    "(() => {{ const e = document.getElementById({!r}); e.value = {!r}; e.dispatchEvent(new Event('change')); }})()"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


class Page:
    """The page of one server in the browser."""

    def __init__(self, browser: Browser, port: int) -> None:
        self.browser, self.origin = browser, f"http://127.0.0.1:{port}/"
        browser.events.clear()
        browser.media()
        browser.call("Emulation.clearDeviceMetricsOverride")
        browser.call("Page.navigate", url=self.origin)
        browser.until("Page.loadEventFired")

    def ask(self, expression):
        return self.browser.ask(expression)

    def until(self, expression):
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if found := self.ask(expression):
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{expression}: {self.ask('document.body.innerText')}")

    def choose(self, name):
        self.until("document.querySelectorAll('#model option').length")
        self.ask(CHANGE.format("model", name))

    def submit(self, form):
        self.ask(f"document.querySelector('#{form} button').click()")

    def upload(self, path):
        document = self.browser.call("DOM.getDocument")["root"]["nodeId"]
        node = self.browser.call("DOM.querySelector", nodeId=document, selector="#file")["nodeId"]
        self.browser.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])


@pytest.fixture
def page(browser, server):
    return Page(browser, server.port)


@pytest.fixture
def picture(tmp_path, png):
    path = tmp_path / "bright.png"
    path.write_bytes(png)
    return path


def test_it_asks_only_its_own_server_and_logs_nothing(page):
    assert page.until("document.getElementById('state-text').textContent == 'ready'")
    assert page.ask("[...document.querySelectorAll('#model option')].map((o) => o.value)") == [
        *("text", "photo", "finder", "judge", "a/b c"),
    ]
    assert page.browser.complaints() == []
    assert all(url.startswith(page.origin) for url in page.browser.requests())
    assert page.ask(UNNAMED) == []


def test_a_text_and_two_texts(page):
    page.choose("text")
    page.submit("text-form")
    page.until("document.querySelectorAll('#text-result rect').length == 16")
    assert "16 numbers, length 1" in page.ask("document.getElementById('text-result').textContent")
    page.ask("document.getElementById('second').value = document.getElementById('first').value")
    page.submit("pair-form")
    assert page.until("document.querySelector('#pair-result .score')?.textContent") == "1.000"
    page.submit("text-form")
    assert "median" in page.until("document.getElementById('latency-text').textContent")
    assert page.ask("document.querySelectorAll('#graph polyline').length") == 3
    assert page.browser.complaints() == []


def test_what_verification_said_is_shown(page):
    page.choose("text")
    shown = page.ask("document.getElementById('proof').textContent")
    assert "SQNR dB" in shown and "cosine" in shown and "Known answers: right" in shown


def test_boxes_and_bars_of_a_picture(page, picture):
    page.choose("finder")
    page.upload(picture)
    page.until("document.querySelectorAll('#boxes rect').length == 1")
    assert page.ask("document.getElementById('boxes').getAttribute('viewBox')") == "0 0 30 20"
    assert "bright" in page.ask("document.getElementById('image-result').textContent")
    page.ask(CHANGE.format("threshold", "0.95"))
    page.until("document.getElementById('image-result').textContent.includes('Nothing found')")
    page.choose("judge")
    page.until("document.querySelectorAll('#image-result .bar').length == 2")
    page.choose("photo")
    page.until("document.querySelectorAll('#image-result .vector rect').length == 16")
    assert page.browser.complaints() == []


def test_tensors_and_the_repeated_request(page):
    page.choose("a/b c")
    page.submit("tensor-form")
    page.until("!!document.querySelector('#tensor-result pre')")
    page.ask("document.getElementById('repeat').click()")
    page.until("document.getElementById('latency-text').textContent.includes('of 3')")
    page.ask("document.getElementById('repeat').click()")
    assert page.ask("document.getElementById('repeat').getAttribute('aria-pressed')") == "false"


def test_an_error_is_shown_in_words(page):
    page.choose("text")
    page.ask("document.getElementById('text').value = 'x'.repeat(5000)")
    page.submit("text-form")
    assert "characters" in page.until("document.querySelector('#text-result .error')?.textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_fits_and_can_be_read(page, scheme, width):
    page.browser.media(prefers_color_scheme=scheme)
    page.browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
    )
    page.choose("text")
    page.submit("pair-form")
    page.until("!!document.querySelector('#pair-result .score')")
    assert page.ask("document.documentElement.scrollWidth") <= width
    cosine = float(page.ask("document.querySelector('#pair-result .score').textContent"))
    least, most, shown = page.ask("['min', 'max', 'value'].map((n) => document.querySelector('#pair-result meter')[n])")
    assert abs((shown - least) / (most - least) - max(0, cosine)) < 0.001, "the bar is as long as the number says"
    lines = page.ask("[...document.querySelectorAll('.legend > span')].map((each) => each.getClientRects().length)")
    assert lines == [1, 1, 1]
    assert page.ask(CONTRAST) >= 4.5


def test_a_token_is_asked_for(browser):
    app = build_app(desk_of(PlainModel("text", "embed-text")), policy=Policy.of(["open sesame"]))
    with running(app) as client:
        page = Page(browser, client.port)
        page.until("!document.getElementById('token-form').hidden")
        page.ask("document.getElementById('token').value = 'open sesame'")
        page.submit("token-form")
        page.until("document.getElementById('state-text').textContent == 'ready'")


def test_the_files_allow_no_other_source(server):
    for path in FILES:
        answer = server("GET", path)
        assert answer.status == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
        assert b"http://www.w3.org/2000/svg" in answer.body or b"//" not in answer.body.replace(b"://127", b"")
