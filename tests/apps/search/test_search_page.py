"""The page of search: its routes refuse what they must, and in a real browser it answers while one types."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Browser
from running import running
from small_models import Counted, picture

pytest.importorskip("httptools")
pytest.importorskip("uvloop")
from anynpu.apps.search.index import Index
from anynpu.apps.search.page.routes import Page
from anynpu.apps.search.query import Search
from anynpu.apps.web.app import Policy


@contextmanager
def served(index, policy=None):
    """Gives the address of the page over an index."""
    page = Page(Search(index), local=True)
    try:
        with running(page.app(policy)) as client:
            yield f"http://127.0.0.1:{client.port}"
    finally:
        page.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An index of three colours and a text, opened once for all tests here."""
    folder = tmp_path_factory.mktemp("page")
    for name, colour in (("a/red.png", "red"), ("a/b/green.png", "#00c000"), ("c/blue.png", "blue")):
        picture(folder / "photos" / name, colour)
    os.utime(folder / "photos" / "a" / "red.png", (86_400 * 365, 86_400 * 365))
    (folder / "photos" / "notes.txt").write_text("<b>A dog</b> in the rain.\n\nSun and a blue sky.\n")
    (folder / "secret.png").write_bytes((folder / "photos" / "a" / "red.png").read_bytes())
    with Index(folder / "index", Counted().models()) as index:
        index.update(folder / "photos")
        yield folder, index


@pytest.fixture(scope="module")
def address(place):
    with served(place[1]) as url:
        yield url


def fetch(url, body=None, **headers):
    """Returns status, headers and body of an answer, whatever its status."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    headers = {"content-type": "application/json"} | headers if isinstance(body, dict) else headers
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def asked(address, **question):
    status, _, body = fetch(f"{address}/api/search", question)
    assert status == 200, body
    return json.loads(body)


def test_words_folders_days_and_likeness(address, place):
    photos = place[0] / "photos"
    found = asked(address, words="green")
    assert found["pictures"][0]["paths"] == [str(photos / "a" / "b" / "green.png")]
    assert asked(address, words="green", folder=str(photos / "c"))["pictures"][0]["paths"][0].endswith("blue.png")
    old = asked(address, words="green", until="1971-01-01")
    assert [Path(each["paths"][0]).name for each in old["pictures"]] == ["red.png"]
    assert asked(address, words="green", until="1970-12-31")["pictures"] == []
    like = asked(address, like=found["pictures"][0]["id"])
    assert len(like["pictures"]) == 2


def test_a_picture_is_sent_and_small_ones_and_files_come_back(address, place):
    blue = (place[0] / "photos" / "c" / "blue.png").read_bytes()
    status, _, body = fetch(f"{address}/api/picture", blue)
    assert status == 200
    first = json.loads(body)["pictures"][0]
    assert first["paths"][0].endswith("blue.png")
    status, headers, thumb = fetch(f"{address}/thumb/{first['hash']}")
    assert (status, headers["content-type"], thumb[:3]) == (200, "image/jpeg", b"\xff\xd8\xff")
    status, headers, whole = fetch(f"{address}/file/{first['id']}")
    assert (status, headers["content-type"], whole) == (200, "image/png", blue)
    assert "sandbox" in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/api/search", {"words": " "}, 422, "empty"),
        ("/api/search", {"wrods": "x"}, 422, "did you mean 'words'"),
        ("/api/search", {"words": "x", "since": "yesterday"}, 422, "not a day"),
        ("/api/search", {"like": "no id"}, 422, "not the id"),
        ("/api/search", b"not json", 415, "JSON"),
        ("/api/picture", b"not a picture", 422, "not a readable image"),
        ("/thumb/../../etc/passwd", None, 404, ""),
        ("/thumb/" + "0" * 64, None, 404, "no such picture"),
        ("/thumb/%2e%2e%2fx", None, 404, "no such picture"),
        ("/file/00000000-0000-0000-0000-000000000000", None, 404, "no such picture"),
        ("/file/..%2f..%2fsecret.png", None, 422, "not the id"),
        ("/nothing", None, 404, "nothing at"),
    ],
)
def test_what_is_refused(address, path, body, status, said):
    headers = {"content-type": "text/plain"} if body == b"not json" else {}
    found, _, text = fetch(address + path, body, **headers)
    assert (found, said in text.decode()) == (status, True), text


def test_another_name_for_this_computer_is_refused(address):
    assert fetch(f"{address}/", host="evil.example")[0] == 421
    assert fetch(f"{address}/api/state", host="evil.example:8091")[0] == 421
    assert fetch(f"{address}/api/state", host="localhost")[0] == 200


def test_a_token_guards_everything_but_the_page(place):
    with served(place[1], Policy.of(("secret",))) as url:
        assert fetch(f"{url}/")[0] == 200
        for path in ("/api/state", "/thumb/" + "0" * 64, "/file/x"):
            assert fetch(url + path)[0] == 401
            assert fetch(url + path, authorization="Bearer wrong")[0] == 401
        assert fetch(f"{url}/api/state", authorization="Bearer secret")[0] == 200


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


def go(browser, url):
    browser.events.clear()
    browser.call("Page.navigate", url=url)
    browser.until("Page.loadEventFired")


def wait(browser, expression):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if browser.ask(expression):
            return
        time.sleep(0.05)
    raise AssertionError(f"never true: {expression}; {browser.ask('document.body.innerText')}")


NAMES = "[...document.querySelectorAll('#pictures .name')].map((n) => n.textContent)"
STATUS = "document.getElementById('status').textContent"


def test_the_page_answers_while_one_types(browser, address):
    go(browser, address)
    wait(browser, f"{STATUS}.startsWith('3 pictures, 2 paragraphs')")
    browser.ask("document.getElementById('words').focus()")
    for letter in "blue":
        browser.key(letter)
    wait(browser, f"{NAMES}[0] === 'blue.png'")
    wait(browser, "[...document.images].filter((i) => i.naturalWidth > 0).length === 3")
    assert browser.ask("document.querySelector('#documents p').textContent") == "Sun and a blue sky."
    browser.ask("document.querySelectorAll('#pictures .facts button')[0].click()")
    wait(browser, f"!{NAMES}.includes('blue.png') && {NAMES}.length === 2")
    assert browser.complaints() == []
    assert all(url.startswith((address, "blob:", "data:")) for url in browser.requests())


def test_folder_filter_and_text_that_is_no_markup(browser, address, place):
    go(browser, address)
    wait(browser, "document.getElementById('folder').options.length >= 4")
    browser.ask("(() => { const w = document.getElementById('words'); w.value = 'dog'; "
                "w.dispatchEvent(new Event('input')); })()")  # fmt: skip
    wait(browser, "document.querySelector('#documents p')?.textContent === '<b>A dog</b> in the rain.'")
    folder = json.dumps(str(place[0] / "photos" / "c"))
    browser.ask(f"(() => {{ const f = document.getElementById('folder'); f.value = {folder}; "
                "f.dispatchEvent(new Event('change')); })()")  # fmt: skip
    wait(browser, f"{NAMES}.join() === 'blue.png'")
    browser.ask("(() => { const d = document.getElementById('until'); d.value = '1980-01-01'; "
                "d.dispatchEvent(new Event('change')); })()")  # fmt: skip
    wait(browser, f"{STATUS}.startsWith('nothing was found')")


def test_a_picture_dropped_on_the_page(browser, address, place):
    go(browser, address)
    wait(browser, f"{STATUS}.startsWith('3 pictures')")
    data = base64.b64encode((place[0] / "photos" / "a" / "red.png").read_bytes()).decode()
    browser.ask(
        "(() => { const bytes = Uint8Array.from(atob('" + data + "'), (c) => c.charCodeAt(0)); "
        "const held = new DataTransfer(); held.items.add(new File([bytes], 'red.png', {type: 'image/png'})); "
        "window.dispatchEvent(new DragEvent('drop', {dataTransfer: held, bubbles: true, cancelable: true})); })()"
    )
    wait(browser, f"{NAMES}[0] === 'red.png'")
    wait(browser, "!document.getElementById('probe').hidden")
    assert browser.complaints() == []


def test_the_page_asks_for_the_token(browser, place):
    with served(place[1], Policy.of(("secret",))) as url:
        go(browser, url)
        wait(browser, "!document.getElementById('login').hidden")
        browser.ask("(() => { document.getElementById('token').value = 'secret'; "
                    "document.getElementById('login').requestSubmit(); })()")  # fmt: skip
        wait(browser, f"{STATUS}.startsWith('3 pictures')")
