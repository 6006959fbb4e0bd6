"""The record of a server's measurement: that of a bench (measure.outcome), with `http` beside it.

label                  "client-side latency": with the network, the queue of the server and this client's own share
loop                   "open" (arrivals wait for nothing) or "closed" (each connection waits for its answer)
url, route, model, batch, timeout_s
connections            {limit, opened, most_busy}
requests, failed       sent, and without a right answer
outcomes               {status, or word, with what was wrong: count}
example                the beginning of the first answer that was not right
retried                sent again, because the server closed an idle connection in that moment
server                 {software, models, info, info_digest, process}; process {program, pids, cores_used,
                       cpu_ms_per_request, rss_bytes, most_rss_bytes}, or null and `why`
client                 {cpu_us_per_request, cores_used, no_op}: no_op {requests, median_ms, max_ms,
                       cpu_us_per_request} is the same client against a server that does nothing
limit                  null, or {kept_per_s, not_kept_per_s, closed_per_s, steps}
"""

from __future__ import annotations

from typing import Any

from anynpu.measure import host
from anynpu.measure.energy import NOT_HERE
from anynpu.measure.load import SERVER
from anynpu.measure.outcome import to_record
from anynpu.measure.web.bench import WebResult
from anynpu.measure.web.checks import ALIKE
from anynpu.measure.web.limit import Limit
from anynpu.measure.web.process import ELSEWHERE
from anynpu.schema import to_dict

LABEL = "client-side latency"
OWN_SHARE = 0.2
"""A client whose own share is more than this part of the median measures itself."""
BUSY_CLIENT = 0.8
OF_A_CLIENT = ("other programs used", "the machine's host took")
"""Warnings that measure others by what this process used: a client uses little, and the server is one of the others."""


def record_of(found: WebResult, limit: Limit | None = None) -> dict[str, Any]:
    """Returns a server's measurement as plain data."""
    record = to_record(found.result)
    record["energy"] = {"source": None, "why": NOT_HERE}
    record["input"] = found.target.source
    record["http"] = web = _web(found, limit)
    usual = [line for line in record["warnings"] if not line.startswith(OF_A_CLIENT)]
    record["warnings"] = [*_warnings(found, web, record), *usual]
    return record


def _web(found: WebResult, limit: Limit | None) -> dict[str, Any]:
    target, samples, checked = found.target, found.samples, found.checked
    wall = found.result.used["wall_s"]
    return {
        "label": LABEL,
        "loop": "open" if found.result.settings.scenario == SERVER else "closed",
        "url": str(target.address),
        "route": target.form,
        "model": target.model,
        "batch": target.batch,
        "timeout_s": found.timeout_s,
        "connections": {"limit": found.connections, "opened": samples.opened, "most_busy": samples.most_busy},
        "requests": len(samples.samples),
        "failed": checked.failed,
        "outcomes": dict(checked.outcomes.most_common()),
        "example": checked.example,
        "retried": samples.retried,
        "server": {
            "software": target.about.software,
            "models": list(target.about.models),
            "info": dict(target.about.info),
            "info_digest": target.about.info_digest,
            "process": None if found.server is None else to_dict(found.server, whole=True),
            "why": found.why_no_server,
        },
        "client": {
            "cpu_us_per_request": 1e6 * found.client_cpu_s / max(1, len(samples.samples)),
            "cores_used": found.client_cpu_s / max(wall, 1e-9),
            "no_op": None if found.overhead is None else to_dict(found.overhead, whole=True),
        },
        "limit": None if limit is None else to_dict(limit, whole=True),
    }


def _warnings(found: WebResult, web: dict[str, Any], record: dict[str, Any]) -> list[str]:
    checked, said = found.checked, []
    if web["failed"]:
        counts = ", ".join(f"{count} x {name}" for name, count in checked.outcomes.most_common() if name != "200")
        said.append(f"{web['failed']} of {web['requests']} requests failed ({counts}); the latencies are of the others")
    if checked.unchecked:
        said.append(
            f"{checked.unchecked} answers were not checked: no two are alike, and there is no room to keep more"
        )
    if checked.least_cosine is not None and checked.least_cosine < ALIKE:
        said.append(f"one text gets different vectors: cosine {checked.least_cosine:.4f} at the lowest")
    summary, overhead = record["latency"]["summary"], found.overhead
    if summary is not None and overhead is not None and overhead.median_ms > OWN_SHARE * summary["median"]:
        said.append(
            f"this client takes {overhead.median_ms:.2g} ms for a server that does nothing: "
            f"{overhead.median_ms / summary['median']:.0%} of the median is its own"
        )
    if web["client"]["cores_used"] > BUSY_CLIENT:
        said.append("this client used a whole core: the server may be quicker than it can send")
    others = (found.result.used["other_cores_used"] or 0.0) - (found.server.cores_used if found.server else 0.0)
    if others > host.BUSY_CORES and (found.server is not None or found.why_no_server != ELSEWHERE):
        said.append(f"other programs used {others:.1f} cores meanwhile" + ("" if found.server else ", or the server"))
    if web["loop"] == "closed":
        said.append("closed loop: a stall is one slow request; --qps sends requests that wait for nothing")
    return said
