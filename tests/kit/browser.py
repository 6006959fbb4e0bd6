"""Chromium through its DevTools protocol: the page as a reader has it, with everything it logs and asks for."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --disable-extensions --hide-scrollbars --remote-debugging-port=0 --remote-allow-origins=*"
)


class Browser:
    """One page of a running chromium."""

    def __init__(self, home: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            pytest.skip("chromium is not installed: apt install chromium")
        websocket = pytest.importorskip(
            "websocket", reason="the DevTools client is missing: pip install websocket-client"
        )
        argv = [program, *FLAGS.split(), f"--user-data-dir={home}", "--window-size=1280,900", "about:blank"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.socket = websocket.create_connection(self._address(home), timeout=120)
        except BaseException:
            self.close()
            raise
        self.numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        self.call("Performance.enable", timeDomain="threadTicks")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _address(self, home: Path) -> str:
        """Returns the socket of the first page; chromium writes its port into its own folder."""
        port, end = home / "DevToolsActivePort", time.monotonic() + 120
        while time.monotonic() < end:
            if port.exists() and port.read_text().strip():
                number = port.read_text().split()[0]
                with urllib.request.urlopen(f"http://127.0.0.1:{number}/json/list", timeout=10) as answer:
                    pages = [each for each in json.load(answer) if each["type"] == "page"]
                if pages:
                    return pages[0]["webSocketDebuggerUrl"]
            time.sleep(0.05)
        raise TimeoutError("chromium did not open a page in 120 s")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def until(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(json.loads(self.socket.recv()))

    def open(self, path: Path) -> None:
        """Opens a file and waits until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.until("Page.loadEventFired")

    def ask(self, expression: str) -> Any:
        """Returns the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, x: float, y: float, dx: float, dy: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        for part in (0.5, 1.0):
            self.call(
                "Input.dispatchMouseEvent",
                type="mouseMoved",
                x=x + dx * part,
                y=y + dy * part,
                button="left",
                buttons=1,
            )
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x + dx, y=y + dy, button="left", clickCount=1)

    def key(self, name: str) -> None:
        text = {"text": name} if len(name) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, **(text if kind == "keyDown" else {}))

    def media(self, **features: str) -> None:
        """Emulates print or a preferred colour scheme."""
        medium = features.pop("medium", "")
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=medium, features=named)

    def complaints(self) -> list[str]:
        """Returns everything that the page logged or threw, policy violations included."""
        self.ask("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")
        loud = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"])[:500] for event in self.events if event.get("method") in loud]

    def requests(self) -> list[str]:
        """Returns what the page asked for beyond itself."""
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked[1:] if url != "data:,"]

    def busy_ms(self) -> float:
        """Returns the CPU time that the page's main thread took so far."""
        figures = {each["name"]: each["value"] for each in self.call("Performance.getMetrics")["metrics"]}
        return 1000 * figures["TaskDuration"]

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
