"""Old opsets are converted up, and ONNX Runtime gives the same before and after."""

from __future__ import annotations

import numpy as np
import pytest
from graph_nets import parse, run, weights

from anynpu.graph.opset import converted, opset_of

RESIZES = {
    "Upsample, linear": (9, 'y = Upsample<mode="linear">(x, s)'),
    "Upsample, nearest": (9, 'y = Upsample<mode="nearest">(x, s)'),
    "Resize, linear": (10, 'y = Resize<mode="linear">(x, s)'),
    "Resize, nearest": (10, 'y = Resize<mode="nearest">(x, s)'),
}


@pytest.mark.parametrize("name", RESIZES)
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 3, 1.5)], ids=str)
def test_old_resizes_count_from_corners(name, scales):
    opset, node = RESIZES[name]
    model = parse(f"g (float[1,2,4,6] x) => (float[A,B,C,D] y) {{ {node} }}", s=np.float32(scales))
    model.opset_import[0].version, model.ir_version = opset, 4
    newer = converted(model, 13)
    assert opset_of(newer) == 13
    np.testing.assert_allclose(run(newer, weights(1, 2, 4, 6))[0], run(model, weights(1, 2, 4, 6))[0], atol=1e-5)
