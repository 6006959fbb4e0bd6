"""Windows that move over images: what convolutions and pools share."""

from __future__ import annotations

from anynpu.firmware.generator.graph import Node
from anynpu.firmware.generator.layer import require

SAME, VALID = 0, 1


def padding(same: bool, size: int, filter_size: int, stride: int, step: int, out: int) -> int:
    """Returns how many positions the first window begins before the image."""
    effective = (filter_size - 1) * step + 1
    return max((out - 1) * stride + effective - size, 0) // 2 if same else 0


def window(
    node: Node, image: tuple[int, ...], out: tuple[int, ...], size: tuple[int, ...], step: tuple[int, int] = (1, 1)
) -> dict[str, int]:
    """Returns the fields of anynpu_window for an operator with strides and a padding."""
    require(len(image) == 4 and len(out) == 4, "takes images of four axes")
    strides = (node.options.strideH, node.options.strideW)
    same = node.options.padding == SAME
    pads = node.pads or [padding(same, image[1 + i], size[i], strides[i], step[i], out[1 + i]) for i in range(2)]
    return {
        "batches": image[0],
        "in_height": image[1],
        "in_width": image[2],
        "in_channels": image[3],
        "out_height": out[1],
        "out_width": out[2],
        "out_channels": out[3],
        "height": size[0],
        "width": size[1],
        "stride_y": strides[0],
        "stride_x": strides[1],
        "step_y": step[0],
        "step_x": step[1],
        "pad_y": pads[0],
        "pad_x": pads[1],
    }


def is_pointwise(w: dict[str, int]) -> bool:
    """Whether each window is one pixel and every pixel has one."""
    single = all(w[k] == 1 for k in ("height", "width", "stride_y", "stride_x"))
    # A PAD at the end alone shows in the size of the output only.
    return single and all(w[f"in_{axis}"] == w[f"out_{axis}"] for axis in ("height", "width"))
