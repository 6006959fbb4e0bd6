"""How the server is: /health, /ready, /info, /metrics, and the admin routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anynpu import __version__, schema
from anynpu.apps.serve.base import Info
from anynpu.apps.serve.desk import Desk
from anynpu.apps.serve.fields import Fields
from anynpu.apps.web.app import Route
from anynpu.apps.web.message import HttpAnswer, HttpRequest, json_answer
from anynpu.apps.web.metrics import KIND


def routes(desk: Desk, in_flight: Callable[[], int] = lambda: 0) -> list[Route]:
    """Returns the routes that tell about the server."""

    async def health(request: HttpRequest) -> HttpAnswer:
        models = {name: model.health() for name, model in desk.fleet.models.items()}
        dead = desk.started and bool(models) and not any(health.serving for health in models.values())
        if desk.draining:
            status = "stopping"
        elif not desk.started:
            status = "starting"
        else:
            status = "ok" if all(health.state == "ready" for health in models.values()) else "degraded"
        states = {name: {**schema.to_dict(h, True), "serving": h.serving} for name, h in models.items()}
        return json_answer({"status": status, "models": states}, 503 if dead else 200)

    async def ready(request: HttpRequest) -> HttpAnswer:
        missing = not_serving(desk)
        if not missing:
            return json_answer({"ready": True})
        answer = json_answer({"ready": False, "reason": missing}, 503)
        answer.headers.append((b"retry-after", b"1"))
        return answer

    async def info(request: HttpRequest) -> HttpAnswer:
        return json_answer(_info(desk))

    async def metrics(request: HttpRequest) -> HttpAnswer:
        text = desk.metrics.text(desk.fleet, in_flight(), not not_serving(desk))
        return HttpAnswer(text.encode(), 200, KIND)

    async def reload(request: HttpRequest) -> HttpAnswer:
        model = desk.choose(request, Fields(request.json(), ("model",)).model())
        before = model.info().version
        after = await desk.fleet.reload(model.name)
        return json_answer({"model": model.name, "before": before, "version": after.version})

    async def check(request: HttpRequest) -> HttpAnswer:
        model = desk.choose(request, Fields(request.json(), ("model",)).model())
        return json_answer({"model": model.name, "canary": schema.to_dict(await desk.fleet.check(model.name), True)})

    served = [
        Route("GET", "/health", health, public=True),
        Route("GET", "/ready", ready, public=True),
        Route("GET", "/info", info),
        Route("GET", "/metrics", metrics),
    ]
    if desk.settings.admin:
        served += [Route("POST", "/admin/reload", reload), Route("POST", "/admin/check", check)]
    return served


def not_serving(desk: Desk) -> str:
    """Returns why the server should get no requests now, or an empty string."""
    if desk.draining:
        return "the server is stopping"
    if not desk.started:
        return "the models are still being loaded"
    states = {name: model.health() for name, model in desk.fleet.models.items()}
    return "; ".join(f"{name} is {h.state}: {h.reason}" for name, h in states.items() if not h.serving)


def _info(desk: Desk) -> dict[str, object]:
    """Returns TEI's fields of the first text model, and everything known of every model."""
    models = {name: desk.open(model).info() for name, model in desk.fleet.models.items()}
    record: dict[str, object] = {"version": __version__, "server": "anynpu", "started": desk.started}
    text = next((info for info in models.values() if info.kind == "embed-text"), None)
    if text is not None:
        record |= {
            "model_id": text.name,
            "model_sha": text.version,
            "model_dtype": text.inputs[0].dtype if text.inputs else "",
            "model_type": {"embedding": {"pooling": "model"}},
            "max_input_length": text.length,
            "max_client_batch_size": text.limits.items,
        }
    record["models"] = {name: described(info) for name, info in models.items()}
    return record


def described(info: Info) -> dict[str, object]:
    """Returns what is known of a model; of its receipt the shares and every operator that is not on the NPU."""
    record: dict[str, object] = schema.to_dict(replace(info, placement=None), True)
    placed = info.placement
    if placed is not None:
        record["placement"] = {
            "npu": placed.npu,
            "operators": len(placed.operators),
            "on_npu": placed.on_npu,
            "share": placed.share,
            "source": placed.source,
            "elsewhere": schema.to_dict(placed.elsewhere()),
        }
    return record
