"""Windows of convolutions: which of them are one product for each pixel."""

from anynpu.firmware.generator.windows import is_pointwise

PIXELS = {
    **{"batches": 1, "in_height": 4, "in_width": 3, "in_channels": 5},
    **{"out_height": 4, "out_width": 3, "out_channels": 2, "height": 1, "width": 1},
    **{"stride_y": 1, "stride_x": 1, "step_y": 1, "step_x": 1, "pad_y": 0, "pad_x": 0},
}


def test_one_pixel_each_is_pointwise():
    assert is_pointwise(PIXELS) and is_pointwise(PIXELS | {"step_y": 2})


def test_padding_at_either_end_is_not():
    assert not is_pointwise(PIXELS | {"out_height": 5})
    assert not is_pointwise(PIXELS | {"out_width": 5})
    assert not is_pointwise(PIXELS | {"out_height": 5, "pad_y": 1})


def test_larger_windows_and_strides_are_not():
    for changed in ({"height": 2, "out_height": 3}, {"width": 3, "out_width": 1}, {"stride_x": 2, "out_width": 2}):
        assert not is_pointwise(PIXELS | changed)
