"""schemathesis over the OpenAPI document: what it allows is taken, what it forbids is refused, and nothing breaks.

`ANYNPU_SCHEMA_EXAMPLES=1000` makes the campaign longer.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress

import pytest
from desks import desk_of, site
from plain_fleet import PlainModel
from process import served
from text_model import text_artifact

schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis.errors import Unsatisfiable  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402

EXAMPLES = int(os.environ.get("ANYNPU_SCHEMA_EXAMPLES", "4"))
TAKEN = ["2xx", "3xx", "401", "403", "404", "409", "413", "429", "5xx"]
REFUSED = ["400", "401", "403", "404", "405", "413", "415", "422"]
CONFIG = {
    "checks": {
        "negative_data_rejection": {"expected-statuses": REFUSED},
        # No schema says how many tokens a text has: one that is not to be cut may be too long.
        "positive_data_acceptance": {"expected-statuses": TAKEN},
    },
    # No schema says which bytes are a picture or the inputs of a model: all others are refused with 422.
    "operations": [
        {"include-path": path, "checks": {"positive_data_acceptance": {"enabled": False}}}
        for path in ("/detect", "/classify", "/infer")
    ],
}


@pytest.fixture(scope="module", params=["every kind", "a real text model"])
def schema(request, tmp_path_factory):
    models = (PlainModel("text", "embed-text"), PlainModel("finder", "detect"), PlainModel("judge", "classify"))
    with ExitStack() as stack:
        if request.param == "every kind":
            port = stack.enter_context(site(desk_of(*models))).port
        else:
            folder = tmp_path_factory.mktemp("real")
            text_artifact(folder / "text")
            port = stack.enter_context(served(folder, "text", "--access-log", "none")).client.port
        config = schemathesis.Config.from_dict(CONFIG)
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json", config=config)


def operations(schema):
    return [result.ok() for result in schema.get_all_operations()]


def test_the_document_has_every_operation(schema):
    documented = {(operation.method.upper(), operation.path) for operation in operations(schema)}
    assert len(documented) >= 23 and {("GET", "/"), ("POST", "/")} <= documented


def judged(operation, mode):
    """Returns a test of one operation."""

    @given(case=operation.as_strategy(generation_mode=GenerationMode[mode]))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=EXAMPLES < 100,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    def holds(case):
        case.call_and_validate()

    return holds


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_nothing_is_found(schema, mode):
    checked = 0
    for operation in operations(schema):
        with suppress(Unsatisfiable):  # nothing can be wrong with a request that has no parts
            judged(operation, mode)()
            checked += 1
    assert checked >= 10
