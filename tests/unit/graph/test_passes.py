"""Passes: the order they run in, what is recorded of them, and that one which changes results is found and dropped."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graph_nets import parse, run, weights

from anynpu.artifact import Manifest, PassEffect
from anynpu.graph import passes
from anynpu.graph.fold import copied
from anynpu.graph.passes import Pass, Repeated
from anynpu.graph.proof import executed
from anynpu.schema import digest, from_dict, to_dict

NET = """g (float[1,4] x) => (float[1,4] y) {
    a = Identity(x)
    b = Sub(a, c)
    d = Relu(b)
    e = Identity(d)
    y = Mul(e, c)
}"""
FEEDS = [{"x": weights(1, 4, seed=seed)} for seed in range(4)]


def net():
    return parse(NET, c=np.array([0.5, -1.0, 2.0, 0.25], np.float32))


def changing(name, op, new, **kind):
    """A pass that turns every operator of one kind into another."""

    def call(model):
        result = copied(model)
        found = [node for node in result.graph.node if node.op_type == op]
        for node in found:
            node.op_type = new
        return result, len(found)

    return Pass(name, f"{op} becomes {new}", call, **kind)


def without_one_identity(model):
    result = copied(model)
    for node in result.graph.node:
        if node.op_type == "Identity":
            for reader in result.graph.node:
                for place, name in enumerate(reader.input):
                    reader.input[place] = node.input[0] if name == node.output[0] else name
            result.graph.node.remove(node)
            return result, 1
    return model, 0


IDLE = Repeated((Pass("idle", "Identity goes", without_one_identity),))
LOUD = changing("loud", "Relu", "Elu")
SIGN = changing("sign", "Sub", "Add")


def kinds(model: onnx.ModelProto):
    return [node.op_type for node in model.graph.node]


def outputs(model):
    return [run(model, feed["x"])[0] for feed in FEEDS]


@pytest.mark.parametrize("place", range(3))
def test_a_pass_that_changes_results_is_dropped_wherever_it_stands(place):
    plan = [IDLE, changing("abs", "Abs", "Relu")]
    plan.insert(place, SIGN)
    graph, effects = passes.run(plan, net(), executed(FEEDS))
    assert kinds(graph) == ["Sub", "Relu", "Mul"]
    assert all(np.array_equal(a, b) for a, b in zip(outputs(graph), outputs(net()), strict=True))
    found = {each.name: each for each in effects}
    assert found["sign"].dropped.startswith("it would change output 'y'")
    assert (found["idle"].changed, found["idle"].operators) == (2, -2)
    assert found["abs"] == PassEffect("abs")
    assert passes.notes(effects) == (f"the pass sign was left out, {found['sign'].dropped}",)


def test_two_faults_are_both_found():
    graph, effects = passes.run([SIGN, IDLE, LOUD], net(), executed(FEEDS))
    assert kinds(graph) == ["Sub", "Relu", "Mul"]
    assert [each.name for each in effects if each.dropped] == ["sign", "loud"]


def test_whole_plan_is_compared_once_where_all_is_well():
    calls = []

    def compare(before, after):
        calls.append((before, after))
        return ""

    given = net()
    graph, _ = passes.run([IDLE, changing("abs", "Abs", "Relu")], given, compare)
    assert [(a is given, b is graph) for a, b in calls] == [(True, True)]


def test_a_pass_that_may_change_results_is_kept_and_those_behind_it_are_held_against_its_graph():
    plan = [IDLE, changing("round", "Relu", "Elu", keeps_results=False), SIGN]
    graph, effects = passes.run(plan, net(), executed(FEEDS))
    assert kinds(graph) == ["Sub", "Elu", "Mul"]
    assert [each.name for each in effects if each.dropped] == ["sign"]


def test_a_graph_that_no_longer_runs_is_a_change():
    graph, effects = passes.run([changing("broken", "Mul", "NoSuchOperator")], net(), executed(FEEDS))
    assert kinds(graph) == kinds(net())
    assert "does not run" in effects[0].dropped


def test_what_a_pass_requires_and_ensures():
    never = changing("never", "Sub", "Add", requires=lambda model: "not for this one")
    bad = changing("bad", "Sub", "Add", ensures=lambda model: "has no Sub")
    graph, effects = passes.run([never, bad], net())
    assert kinds(graph) == kinds(net())
    assert effects == (PassEffect("never"), PassEffect("bad", dropped="has no Sub"))


def test_passes_are_run_singly_and_left_out_by_name():
    graph, effects = passes.run([IDLE, SIGN], net(), without=["idle"])
    assert [each.name for each in effects] == ["sign"]
    assert kinds(graph) == ["Identity", "Add", "Relu", "Identity", "Mul"]
    single, changed = SIGN.call(net())
    assert (changed, single) == (1, graph)


def test_a_manifest_keeps_effects_and_an_old_one_its_digest():
    plain = Manifest(format="onnx", main="model.onnx")
    assert "passes" not in to_dict(plain)
    full = Manifest(format="onnx", main="model.onnx", passes=(PassEffect("idle", 2, -2), PassEffect("sign")))
    assert from_dict(Manifest, to_dict(full), "manifest") == full
    assert digest(full) != digest(plain)
