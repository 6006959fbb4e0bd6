"""The OpenAPI document of the models that are served now, and a page that shows it."""

from __future__ import annotations

from anynpu import __version__
from anynpu.apps.serve import schemas
from anynpu.apps.serve.desk import Desk
from anynpu.apps.serve.operation import Operation
from anynpu.apps.web.app import App, Route
from anynpu.apps.web.files import PackageFile
from anynpu.apps.web.message import HttpAnswer, HttpRequest, json_answer

PAGE = "anynpu.apps.serve.reference"
WORDS = {
    400: "Not valid JSON.",
    401: "The token is missing or wrong.",
    404: "No such model, or no such path.",
    408: "The body did not come in time.",
    413: "Beyond a limit: bytes, items, text, pixels.",
    415: "A body of another type than this route takes.",
    422: "A field is missing, unknown or of the wrong kind; or what was sent cannot be read.",
    429: "The queue is full; Retry-After says when to try again.",
    500: "The model gave a result that is not a number, or a defect of the server.",
    503: "The device failed, or the server is starting or stopping.",
    504: "The deadline passed before the request was computed.",
}


def routes(desk: Desk, app: App) -> list[Route]:
    """Returns the document, and the page with its script and style."""

    async def document_route(request: HttpRequest) -> HttpAnswer:
        return json_answer(document(desk, app))

    return [
        Route("GET", "/openapi.json", document_route, public=True),
        Route("GET", "/docs", PackageFile(PAGE, "docs.html"), public=True),
        Route("GET", "/docs.js", PackageFile(PAGE, "docs.js"), public=True),
        Route("GET", "/docs.css", PackageFile(PAGE, "docs.css"), public=True),
    ]


def document(desk: Desk, app: App) -> dict[str, object]:
    """Returns the document: only models, widths and tensors that are there can be asked for."""
    operations = (
        schemas.operations({name: model.info() for name, model in desk.fleet.models.items()}) if desk.started else {}
    )
    paths: dict[str, dict[str, object]] = {}
    for route in app.routes():
        name = f"{route.method} {route.path}"
        operation = operations.get(name) or schemas.GENERAL.get(name)
        if operation is not None:
            shown = _operation(route, operation, bool(app.policy.tokens))
            paths.setdefault(route.path, {})[route.method.lower()] = shown
    components: dict[str, object] = {"schemas": schemas.ERRORS}
    if app.policy.tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "anynpu serve", "version": __version__, "description": schemas.ABOUT},
        "paths": paths,
        "components": components,
    }


def _operation(route: Route, operation: Operation, tokens: bool) -> dict[str, object]:
    content = {operation.kind: {"schema": operation.answer}} if operation.kind else {}
    form = {"$ref": f"#/components/schemas/{route.errors}"}
    statuses = [
        *((400,) if operation.bodies else ()),
        *operation.statuses,
        *((401,) if tokens and not route.public else ()),
    ]
    errors = {
        str(status): {"description": WORDS[status], "content": {"application/json": {"schema": form}}}
        for status in sorted(set(statuses))
    }
    if route.path == "/ready" or route.path.endswith("/ready") or route.path == "/health":
        errors["503"] = {"description": "Not now.", "content": {"application/json": {"schema": operation.answer}}}
    shown: dict[str, object] = {
        "operationId": f"{route.method.lower()}{route.path.replace('/', '_').replace('{', '').replace('}', '')}",
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {"200": {"description": "The answer.", "content": content}, **errors},
    }
    if operation.parameters:
        shown["parameters"] = list(operation.parameters)
    if operation.bodies:
        bodies = {kind: {"schema": schema} for kind, schema in operation.bodies.items()}
        shown["requestBody"] = {"required": True, "content": bodies}
    if tokens and not route.public:
        shown["security"] = [{"token": []}]
    return shown
