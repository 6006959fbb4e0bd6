import pytest

from anynpu.errors import ConfigError
from anynpu.quantize.plan import QuantPlan


def test_defaults():
    plan = QuantPlan()
    assert (plan.activations, plan.weights, plan.method, plan.io, plan.bits) == (
        "int8", "per-channel", "auto", "integer", 8,
    )  # fmt: skip
    assert not plan.symmetric and QuantPlan(activations="int16").symmetric
    assert plan.to_json()["percentile"] == 99.99


@pytest.mark.parametrize(
    "bad",
    [
        {"activations": "int4"},
        {"weights": "per-row"},
        {"method": "magic"},
        {"io": "both"},
        {"percentile": 0.9999},
        {"percentile": 101.0},
    ],
)
def test_unknown_values_are_refused(bad):
    with pytest.raises(ConfigError):
        QuantPlan(**bad)
