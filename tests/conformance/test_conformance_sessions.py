"""Every registered session keeps every rule of the kit, with every format it runs."""

from __future__ import annotations

import pytest

from anynpu import plugins
from anynpu.testing.session_rules import RULES, SessionCase

PAIRS = [(name, format) for name in plugins.names("sessions") for format in plugins.load("sessions", name).formats]


@pytest.fixture(scope="module")
def session_case(case_of, model, tmp_path_factory):
    """Gives the case of a session and a format, with the artifact that the built-in compilers make."""
    made = {}

    def case(name, format):
        session_class = plugins.load("sessions", name)
        if reason := session_class.missing():
            pytest.skip(reason)
        if (name, format) not in made:
            if format == "tflite-given":  # what a user brings: no compiler makes it
                artifact = case_of("tflite_given").model
            else:
                makers = [t for t in plugins.names("targets") if plugins.load("targets", t).produces == format]
                artifact = model if format == "onnx" else case_of(makers[0]).first.artifact
            reference = None if format == "null" else model
            # The small net at int8 keeps well above this; a wrong layout or scale falls far below.
            floor = 20.0
            made[name, format] = SessionCase(
                session_class, artifact, tmp_path_factory.mktemp(f"{name}-{format}"), reference, min_sqnr_db=floor
            )
        return made[name, format]

    return case


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize(("name", "format"), PAIRS)
def test_session(name, format, rule, session_case):
    rule(session_case(name, format))
