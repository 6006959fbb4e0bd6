"""The arena: what lives together lies apart, and no more is taken than must be."""

from __future__ import annotations

import random
import time

from hypothesis import given
from hypothesis import strategies as st

from anynpu.firmware.generator.graph import Graph, Node
from anynpu.firmware.generator.layer import Layer
from anynpu.firmware.generator.planner import Block, _first_fit, _meetings, _place, plan, with_room
from anynpu.targets.flatbuffer import TfliteTensor


def graph(sizes: list[int], links: list[tuple[tuple[int, ...], int]], inputs=(0,), outputs=None) -> Graph:
    nodes = tuple(Node(i, "X", f"n{i}", read, (made,), None, 0) for i, (read, made) in enumerate(links))
    tensors = {i: TfliteTensor(f"t{i}", "int8", (size,)) for i, size in enumerate(sizes)}
    return Graph(nodes, tensors, tuple(inputs), tuple(outputs or (links[-1][1],)))


def layers(g: Graph, **settings) -> list[Layer]:
    return [Layer(node, **settings) for node in g.nodes]


def test_a_chain_needs_its_largest_pair():
    g = graph([100, 400, 40, 8], [((0,), 1), ((1,), 2), ((2,), 3)])
    found = plan(g, layers(g))
    assert found.bytes == found.bound == 500
    assert found.peak_step == 0


def test_an_operator_in_place_takes_no_memory():
    g = graph([100, 100, 100], [((0,), 1), ((1,), 2)])
    found = plan(g, [Layer(n, over=n.inputs) for n in g.nodes])
    assert found.bytes == 100 and found.bound == 200 and found.in_place == 2


def test_what_is_read_later_is_not_overwritten():
    g = graph([100, 100, 100], [((0,), 1), ((0, 1), 2)])
    found = plan(g, [Layer(g.nodes[0], over=(0,)), Layer(g.nodes[1])])
    assert found.tensors[0] != found.tensors[1] and found.in_place == 0


def test_an_alias_read_later_keeps_its_memory():
    g = graph([64, 64, 64, 64], [((0,), 1), ((1,), 2), ((0, 2), 3)])
    made = [Layer(g.nodes[0], alias=0), Layer(g.nodes[1], over=(1,)), Layer(g.nodes[2])]
    found = plan(g, made)
    assert found.tensors[0] == found.tensors[1] != found.tensors[2]


def test_an_output_is_not_overwritten():
    g = graph([32, 32, 32], [((0,), 1), ((1,), 2)], outputs=(1, 2))
    found = plan(g, [Layer(g.nodes[0]), Layer(g.nodes[1], over=(1,))])
    assert found.tensors[1] != found.tensors[2]


def test_scratch_lies_beside_what_lives_then():
    g = graph([16, 16], [((0,), 1)])
    found = plan(g, layers(g, scratch=8))
    assert found.bytes == 40 and found.scratch[0] not in found.tensors.values()


blocks = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=14)


@given(blocks)
def test_blocks_that_meet_never_overlap(drawn):
    made = [Block(str(i), 4 * size, first, first + span) for i, (size, first, span) in enumerate(drawn)]
    offsets, total = _place(made)
    for i, a in enumerate(made):
        assert offsets[a.key] >= 0 and offsets[a.key] + a.bytes <= total and offsets[a.key] % 4 == 0
        for b in made[i + 1 :]:
            apart = offsets[a.key] + a.bytes <= offsets[b.key] or offsets[b.key] + b.bytes <= offsets[a.key]
            assert apart or a.last < b.first or b.last < a.first
    assert total <= _first_fit(made, _meetings(made))[1]
    assert _place(made) == (offsets, total)


def test_thousands_of_steps_are_laid_out_in_seconds():
    """Recurrent nets that are written out have them, and each of their layers may have a roomier form."""
    draw = random.Random(0)
    sizes = [4 * draw.randrange(1, 300) for _ in range(3001)]
    g = graph(sizes, [((max(0, number - draw.randrange(1, 9)), number), number + 1) for number in range(3000)])
    roomier = [Layer(node, scratch=4000) for node in g.nodes[::100]]
    made = [
        Layer(node, over=node.inputs, roomy=roomier[i // 100] if i % 100 == 0 else None)
        for i, node in enumerate(g.nodes)
    ]
    begun = time.process_time()
    chosen = with_room(g, made)
    assert len(chosen) == 3000 and time.process_time() - begun < 60
