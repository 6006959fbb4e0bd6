"""The record of a server's measurement: that of a bench (measure.outcome), with `http` (records.bench.Http)."""

from __future__ import annotations

from dataclasses import replace

from anynpu.measure import host
from anynpu.measure.energy import NOT_HERE
from anynpu.measure.load import SERVER
from anynpu.measure.outcome import to_record
from anynpu.measure.web.bench import WebResult
from anynpu.measure.web.checks import ALIKE
from anynpu.measure.web.process import ELSEWHERE
from anynpu.records.bench import BenchRecord, EnergyForm
from anynpu.records.shared import Summary
from anynpu.records.web import Client, Connections, Http, RateLimit, Server

LABEL = "client-side latency"
OWN_SHARE = 0.2
"""A client whose own share is more than this part of the median measures itself."""
BUSY_CLIENT = 0.8
OF_A_CLIENT = ("other programs used", "the machine's host took")
"""Warnings that measure others by what this process used: a client uses little, and the server is one of the others."""


def record_of(measured: WebResult, limit: RateLimit | None = None) -> BenchRecord:
    """Returns a server's measurement."""
    target, traffic, checked = measured.target, measured.traffic, measured.checked
    wall = measured.result.used.wall_s
    web = Http(
        label=LABEL,
        loop="open" if measured.result.settings.scenario == SERVER else "closed",
        url=str(target.address),
        route=target.form,
        model=target.model,
        batch=target.batch,
        timeout_s=measured.timeout_s,
        connections=Connections(limit=measured.connections, opened=traffic.opened, most_busy=traffic.most_busy),
        requests=len(traffic.attempts),
        failed=checked.failed,
        outcomes=dict(checked.outcomes.most_common()),
        example=checked.example,
        retried=traffic.retried,
        server=Server(
            software=target.about.software,
            models=tuple(target.about.models),
            info=dict(target.about.info),
            info_digest=target.about.info_digest,
            process=measured.server,
            why=measured.why_no_server,
        ),
        client=Client(
            cpu_us_per_request=1e6 * measured.client_cpu_s / max(1, len(traffic.attempts)),
            cores_used=measured.client_cpu_s / max(wall, 1e-9),
            no_op=measured.overhead,
        ),
        limit=limit,
    )
    record = to_record(measured.result)
    usual = [line for line in record.warnings or () if not line.startswith(OF_A_CLIENT)]
    summary = record.latency.summary if record.latency else None
    return replace(
        record,
        energy=EnergyForm(why=NOT_HERE),
        input=measured.target.source,
        url=str(measured.target.address),
        http=web,
        warnings=(*_warnings(measured, web, summary), *usual),
    )


def _warnings(measured: WebResult, web: Http, summary: Summary | None) -> list[str]:
    checked, sentences = measured.checked, []
    if web.failed:
        counts = ", ".join(f"{count} x {name}" for name, count in checked.outcomes.most_common() if name != "200")
        sentences.append(f"{web.failed} of {web.requests} requests failed ({counts}); the latencies are of the others")
    if checked.unchecked:
        sentences.append(
            f"{checked.unchecked} answers were not checked: no two are alike, and there is no room to keep more"
        )
    if checked.least_cosine is not None and checked.least_cosine < ALIKE:
        sentences.append(f"one text gets different vectors: cosine {checked.least_cosine:.4f} at the lowest")
    overhead_ms = measured.overhead.median_ms if measured.overhead else None
    if summary is not None and overhead_ms is not None and overhead_ms > OWN_SHARE * summary.median:
        sentences.append(
            f"this client takes {overhead_ms:.2g} ms for a server that does nothing: "
            f"{overhead_ms / summary.median:.0%} of the median is its own"
        )
    if web.client.cores_used > BUSY_CLIENT:
        sentences.append("this client used a whole core: the server may be quicker than it can send")
    others = (measured.result.used.other_cores_used or 0.0) - (measured.server.cores_used if measured.server else 0.0)
    if others > host.BUSY_CORES and (measured.server is not None or measured.why_no_server != ELSEWHERE):
        sentences.append(
            f"other programs used {others:.1f} cores meanwhile" + ("" if measured.server else ", or the server")
        )
    if web.loop == "closed":
        sentences.append("closed loop: a stall is one slow request; --qps sends requests that wait for nothing")
    return sentences
