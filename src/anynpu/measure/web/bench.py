"""One server measured: first request, warm-up, the run itself, and what the client and the server used for it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anynpu import tool
from anynpu.errors import DeviceError
from anynpu.measure import host, stats
from anynpu.measure.load import SERVER, Result, Settings, Tell, Trace, WarmUp
from anynpu.measure.server import arrivals
from anynpu.measure.timer import calibrate
from anynpu.measure.web import no_op
from anynpu.measure.web.address import Address
from anynpu.measure.web.checks import Checked, check
from anynpu.measure.web.exchange import request_bytes
from anynpu.measure.web.generator import Attempt, Plan, Traffic, generate
from anynpu.measure.web.process import ServerProcess
from anynpu.measure.web.target import Target, closed_plan, first_request
from anynpu.records.web import NoOp, Process

NO_OP_REQUESTS, NO_OP_S = 300, 3.0
WARM_REQUESTS, WARM_S = 20, 0.5
OPEN_CONNECTIONS = 256
"""An open loop opens connections as it needs them, up to this many by default."""


@dataclass
class WebResult:
    """A measurement and what came of every request."""

    target: Target
    result: Result
    traffic: Traffic
    checked: Checked
    connections: int
    client_cpu_s: float
    server: Process | None
    why_no_server: str = ""
    overhead: NoOp | None = None
    timeout_s: float = 10.0


def measure_overhead(requests: int = NO_OP_REQUESTS, size: int = 8192) -> NoOp | None:
    """Returns what the generator adds to a latency, from a server that does nothing; None where it does not answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener, Path(os.devnull).open("w") as silence:
        listener.set_inheritable(True)
        process = tool.attend(
            *(no_op.__name__, str(listener.fileno()), str(size)),
            descriptors=[listener.fileno()],
            output=silence.fileno(),
        )
        try:
            address = Address("http", "127.0.0.1", listener.getsockname()[1], "/")
            request = request_bytes(address, b"{}", "application/json")
            generate(Plan(address, (request,), 1, 10.0, until=lambda n, s: "enough" if n >= 10 else ""))
            enough = lambda n, s: "enough" if n >= requests or s >= NO_OP_S else ""  # noqa: E731
            began = time.process_time()
            traffic = generate(Plan(address, (request,), 1, 10.0, until=enough))
            spent = time.process_time() - began
        finally:
            tool.end(process)
            if process.stdin is not None:
                process.stdin.close()
    spans = [(each.last - each.due) / 1e6 for each in traffic.attempts if each.outcome == 200]
    if not spans:
        return None
    return NoOp(
        requests=len(spans),
        median_ms=stats.percentile(spans, 0.5),
        max_ms=max(spans),
        cpu_us_per_request=1e6 * spent / len(spans),
    )


def fill(trace: Trace, good: Sequence[Attempt], traffic: Traffic, open_loop: bool) -> None:
    """Puts right answers into a trace, in the order in which they were due."""
    trace.start, trace.ended = traffic.start, traffic.ended or "enough"
    trace.queries, trace.late = traffic.scheduled or len(traffic.attempts), traffic.late
    for each in good:
        parts = {"queue": each.sent - each.due} if open_loop else {}
        trace.add(each.due, each.last, {**parts, "wait": each.first - each.sent, "receive": each.last - each.first})


class WebBench:
    """A server that answered its first request; measured as often as asked."""

    def __init__(
        self,
        target: Target,
        process: ServerProcess | None = None,
        why_no_process: str = "",
        timeout_s: float = 10.0,
        tell: Tell = lambda stage, seconds: None,
    ) -> None:
        self.target, self.process, self.why, self.timeout_s, self.tell = (
            target,
            process,
            why_no_process,
            timeout_s,
            tell,
        )
        self.timer = calibrate()
        traffic, checked = first_request(target, timeout_s)
        first = checked.good[0]
        self.connect_ns, self.first_ns = first.sent - traffic.start, first.last - first.sent
        self.size = len(traffic.answers[0][1].body)
        tell("first request", self.first_ns / 1e9)

    def warm_up(self, settings: Settings, connections: int) -> WarmUp:
        """Sends requests that are not counted: a number, or for half a second at least."""
        if settings.warm_up == 0:
            return WarmUp(0, 0.0, None)
        began = time.perf_counter()
        if settings.warm_up is not None:
            plan = closed_plan(self.target, settings.warm_up, self.timeout_s, connections)
        else:
            limit = min(settings.warm_up_cap_s, 10 * WARM_S)
            plan = Plan(
                *(self.target.address, self.target.requests, connections, self.timeout_s),
                until=lambda n, s: "enough" if (n >= WARM_REQUESTS and s >= WARM_S) or s >= limit else "",
            )
        traffic = generate(plan)
        seconds = time.perf_counter() - began
        self.tell("warm-up", seconds)
        return WarmUp(len(traffic.attempts), seconds, None)

    def run(self, settings: Settings, connections: int, warm: WarmUp) -> WebResult:
        """Returns the measurement; one that breaks off holds the samples so far and the error."""
        open_loop = settings.scenario == SERVER
        schedule = arrivals(settings) if open_loop else None
        address, requests = self.target.address, self.target.requests
        plan = Plan(address, requests, connections, self.timeout_s, schedule, None if open_loop else settings.ended)
        traffic, watch, machine = Traffic(), host.Watch(), host.describe()
        trace = Trace()
        if schedule:
            trace.arrived_per_s = len(schedule) / (schedule[-1] / 1e9)
        error: BaseException | None = None
        with host.without_gc():
            watch.start()
            before, cpu = self.process.usage() if self.process else None, time.process_time()
            try:
                generate(plan, traffic)
            except KeyboardInterrupt as interrupted:
                error = interrupted
            spent = time.process_time() - cpu
            after = self.process.usage() if self.process else None
            used = watch.stop()
        checked = check(self.target.form, self.target.payloads, traffic)
        fill(trace, checked.good, traffic, open_loop)
        error = error or traffic.error
        if error is None and traffic.attempts and not checked.good:
            outcome, count = checked.outcomes.most_common(1)[0]
            error = DeviceError(f"{address}: no right answer to {len(traffic.attempts)} requests: {count} x {outcome}")
        what = f"POST {address}" + (f" ({self.target.about.software})" if self.target.about.software else "")
        result = Result(
            what, "http", settings, self.timer, self.connect_ns, self.first_ns, warm,
            trace, watch, used, _outputs(checked), machine, error,
        )  # fmt: skip
        server, why = None, self.why
        if self.process is not None and before is not None and after is not None:
            seconds = max(used.wall_s, 1e-9)
            busy = max(0.0, after.cpu_s - before.cpu_s)
            each = 1000 * busy / len(checked.good) if checked.good else None
            most = max(before.rss_bytes, after.rss_bytes)
            server = Process(
                program=self.process.program,
                pids=after.processes,
                cores_used=busy / seconds,
                cpu_ms_per_request=each,
                rss_bytes=after.rss_bytes,
                most_rss_bytes=most,
            )
        elif self.process is not None:
            why = "its process ended while it was measured"
        return WebResult(
            self.target, result, traffic, checked, connections, spent, server, why, timeout_s=self.timeout_s
        )


def _outputs(checked: Checked) -> dict[str, object]:
    return {
        "checked": len(checked.good) - checked.unchecked,
        "unchecked": checked.unchecked,
        "differ": 0,
        "distinct": checked.distinct,
        "width": checked.width or None,
        "least_cosine": checked.least_cosine,
    }
