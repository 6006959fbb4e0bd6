"""The fleet page in a real browser, over a real collector that has seen eight days and a fault."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from collector import TOKEN, Collector

INTERVAL_S = 300.0
HOSTS = ("web1", "web2", "<b>odd & long name</b> " + "x" * 60)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    found = Collector(tmp_path_factory.mktemp("page"), "--interval", str(INTERVAL_S))
    rng = np.random.default_rng(3)
    age_s = np.arange(8 * 288)[::-1] * INTERVAL_S + 1
    for number, host in enumerate(HOSTS):
        wave = 30 + 15 * np.sin(2 * np.pi * (time.time() - age_s) / 86_400) + rng.normal(0, 1, age_s.size)
        memory = 40 + rng.normal(0, 0.3, age_s.size)
        if number == 0:
            wave[-8:] = 98.0
        rows = [
            {
                "id": f"s-{n}",
                "boot": "b",
                "time": time.time() - age,
                "uptime": 1e6 - age,
                "metrics": {
                    "cpu_percent": round(cpu, 1),
                    "memory_percent": round(mem, 1),
                    "net_sent_bytes_per_s": 1e5 * cpu,
                },
            }
            for n, (age, cpu, mem) in enumerate(zip(age_s.tolist(), wave.tolist(), memory.tolist(), strict=True))
        ]
        for part in (rows[:800], rows[800:1600], rows[1600:]):
            batch = {"version": 1, "host": host, "boot": "b", "time": time.time(), "uptime": 1e6, "samples": part}
            assert found.call("/v1/samples", batch)[0] == 200
    found.until(lambda: any(a["host"] == "web1" for a in found.call("/v1/fleet")[1]["alerts"]), 120)
    found.until(lambda: found.call("/health")[1]["behind"] == 0, 120)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def page(hub, tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    browser.call("Page.navigate", url=hub.url + "/")
    browser.until("Page.loadEventFired")
    wait(browser, "!document.getElementById('sign-in').hidden")
    browser.ask(f"document.getElementById('token').value = {json.dumps(TOKEN)}")
    browser.ask("document.querySelector('#sign-in button').click()")
    wait(browser, "document.querySelectorAll('.host').length === 3")
    browser.events.clear()
    yield browser
    browser.close()


def wait(browser, condition):
    end = time.monotonic() + 120
    while not browser.ask(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.1)


def shot(browser, name):
    """Keeps a picture for people to look at, where WATCH_PICTURES names a folder."""
    folder = os.environ.get("WATCH_PICTURES")
    if folder:
        found = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(found["data"]))


def test_the_alert_is_shown_with_its_cause_highlighted_and_nothing_comes_from_elsewhere(page, hub):
    assert "cpu_percent" in page.ask("document.querySelector('.alert').textContent")
    page.ask("document.querySelector('.alert .acts button:last-child').click()")
    wait(page, "document.querySelectorAll('#lines figure').length === 3")
    assert page.ask("document.querySelector('#lines figure.bad figcaption b').textContent") == "cpu_percent"
    assert page.ask("document.querySelectorAll('#lines figure.bad .span').length") >= 1
    assert page.ask("document.querySelector('figure.bad .band-area').getAttribute('d').length") > 100
    assert page.ask("document.querySelectorAll('#hosts b, #alerts b').length") == 0  # names are text, not markup
    shot(page, "watch-light")
    page.media(prefers_color_scheme="dark")
    shot(page, "watch-dark")
    page.media()
    assert page.complaints() == []
    assert all(url.startswith((hub.url, "data:")) for url in page.requests())


def test_a_phone_shows_it_without_scrolling_sideways(page):
    page.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    wait(page, "document.documentElement.scrollWidth <= 360")
    shot(page, "watch-phone")
    page.call("Emulation.clearDeviceMetricsOverride")


def test_acknowledge_and_mute_from_the_page_are_kept(page, hub):
    def press(text):
        page.ask(
            f"[...document.querySelectorAll('.alert button')].find((b) => b.textContent === {json.dumps(text)}).click()"
        )

    press("Acknowledge")
    wait(page, "document.querySelector('.alert').textContent.includes('acknowledged')")
    press("Mute 8 h")
    wait(page, "document.getElementById('mutes').textContent.includes('web1')")
    fleet = hub.call("/v1/fleet")[1]
    assert fleet["alerts"][0]["acknowledged_s"] and fleet["mutes"][0]["host"] == "web1"
    page.ask("document.querySelector('#mutes button').click()")
    wait(page, "document.getElementById('mutes').textContent === ''")


def test_hosts_are_found_by_part_of_their_name(page):
    page.ask("document.getElementById('search').value = 'WEB2'")
    page.ask("document.getElementById('search').dispatchEvent(new Event('input'))")
    assert page.ask("[...document.querySelectorAll('.host strong')].map((e) => e.textContent)") == ["web2"]
