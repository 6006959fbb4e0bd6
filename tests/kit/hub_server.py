"""A hub for tests: files over HTTP with ranges, and every way in which a server can misbehave."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub:
    """What the server gives and how; `requests` holds the path and the Range of each request."""

    def __init__(self):
        self.files = {}
        self.requests = []
        self.status = 0
        self.redirect = ""
        self.cut_after = []
        self.stall = 0.0
        self.ranges = True
        self.tag = '"one"'
        self.length = True


def handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            wanted = self.headers.get("Range", "")
            hub.requests.append((self.path, wanted))
            if hub.status or (hub.redirect and not self.path.startswith("/moved")):
                self.send_response(hub.status or 302)
                if hub.redirect:
                    self.send_header("Location", hub.redirect)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = hub.files.get(self.path.removeprefix("/moved"))
            if body is None:
                self.send_error(404)
                return
            self.answer(body, wanted)

        def answer(self, body, wanted):
            start = 0
            if wanted and hub.ranges and self.headers.get("If-Range") == hub.tag:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(body):
                    self.send_response(416)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if hub.tag:
                self.send_header("ETag", hub.tag)
            if hub.length:
                self.send_header("Content-Length", str(len(body) - start))
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            rest = body[start:]
            if hub.cut_after:
                rest = rest[: hub.cut_after.pop(0)]
                self.wfile.write(rest)
                self.wfile.flush()
                time.sleep(hub.stall)
                return
            self.wfile.write(rest)

    return Handler


@contextmanager
def serving():
    """Gives a hub and its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
