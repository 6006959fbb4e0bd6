"""The receipt out of the provider's own report and a profile of ONNX Runtime."""

from __future__ import annotations

import json

import pytest

from anynpu.errors import IntegrityError
from anynpu.runtime.vitisai_report import BOTH, FUSED, PROVIDER, read_report, receipt

CPU = "CPUExecutionProvider"


def profile(*providers):
    """A profile in the form that ONNX Runtime writes; each provider executed one node, twice."""
    nodes = [
        {"cat": "Node", "name": f"n{i}_kernel_time", "dur": 5, "args": {"provider": p, "op_name": "Conv"}}
        for i, p in enumerate(providers)
    ]
    return json.dumps([{"cat": "Session", "name": "model_run", "dur": 9}, *nodes, *nodes])


def report(running=1, **counts):
    nodes = [
        {"device": name, "input": ["x"], "opType": f"::{name}Op", "output": [f"{name}{i}"]}
        for name, count in counts.items()
        for i in range(count)
    ]
    devices = [{"name": "all", "nodeNum": len(nodes)}, *({"name": n, "nodeNum": c} for n, c in counts.items())]
    parts = [{"device": "NPU", "count": 1}, {"device": "Actually running on NPU", "count": running}]
    return json.dumps({"deviceStat": devices, "nodeStat": nodes, "subgraphStat": parts})


def test_operators_inside_a_part_of_the_provider_count_one_by_one():
    placed = receipt(profile(PROVIDER, CPU), report(NPU=398, VITIS_EP_CPU=1, CPU=1), "NPU")
    assert (placed.on_npu, len(placed.operators), placed.source) == (398, 400, BOTH)
    assert placed.source.startswith("read from the profile of a run")
    assert {op.reason for op in placed.elsewhere()} == {
        "the provider left it to VITIS_EP_CPU",
        "the provider left it to CPU",
    }
    assert placed.operators[0].kind == "NPUOp" and placed.operators[0].name == "NPU0"


@pytest.mark.parametrize("name", ["DPU", "VAIML", "IPU", "npu"])
def test_releases_call_the_npu_by_several_names(name):
    assert receipt(profile(PROVIDER), report(**{name: 3}), "NPU").on_npu == 3


def test_a_name_nobody_knows_is_not_the_npu():
    assert receipt(profile(PROVIDER), report(GPU=3), "NPU").on_npu == 0


def test_a_report_that_the_run_does_not_bear_out_is_not_believed():
    denied = receipt(profile(CPU, CPU), report(NPU=10, CPU=2), "NPU")
    assert denied.on_npu == 0 and "no node of VitisAIExecutionProvider was executed" in denied.operators[0].reason
    idle = receipt(profile(PROVIDER), report(running=0, NPU=10), "NPU")
    assert idle.on_npu == 0 and "nothing runs there" in idle.operators[0].reason


def test_without_a_report_the_profile_speaks_and_says_so():
    placed = receipt(profile(PROVIDER, CPU, CPU), "", "NPU")
    assert (placed.on_npu, len(placed.operators), placed.source) == (1, 3, FUSED)
    assert "CPUExecutionProvider ran it: the provider did not take it" in placed.elsewhere()[0].reason


def test_counts_do_where_no_operator_is_listed():
    counts = {
        "deviceStat": [{"name": "all", "nodeNum": 12}, {"name": "NPU", "nodeNum": 10}, {"name": "CPU", "nodeNum": 2}]
    }
    found = read_report(json.dumps(counts))
    assert (len(found.operators), found.running) == (12, None)
    assert sum(op.device == "npu" for op in found.operators) == 10


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"nodeStat": [{}]}', '{"nodeStat": 5}', '{"deviceStat": [{"name": "NPU"}]}']
)
def test_what_is_no_report_is_refused(text):
    with pytest.raises(IntegrityError, match="not a report of the VitisAI provider"):
        read_report(text)


@pytest.mark.parametrize("text", ["", "{}", "[]", '[{"cat": "Node", "name": "a_kernel_time", "args": {}}]'])
def test_what_is_no_profile_is_refused(text):
    with pytest.raises(IntegrityError):
        receipt(text, report(NPU=1), "NPU")
