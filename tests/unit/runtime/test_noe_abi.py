"""The structures, numbers and prototypes of libnoe, as its header and symbol table have them."""

from __future__ import annotations

import ctypes

import pytest

from anynpu.errors import DeviceError
from anynpu.runtime.noe import abi
from anynpu.runtime.noe.status import STATUSES, explain, failure

LAYOUTS = {
    abi.TensorDesc: (20, {"id": 0, "size": 4, "scale": 8, "zero_point": 12, "data_type": 16}),
    abi.JobConfigNpu: (32, {"misc": 0, "fm_idxes": 8, "fm_idxes_cnt": 16, "dynshape": 24}),
    abi.JobConfig: (8, {"npu": 0}),
    abi.GraphConfigNpu: (32, {"misc": 0, "wt_idxes": 8, "wt_idxes_cnt": 16, "extra_weight_path": 24}),
    abi.GraphConfig: (8, {"npu": 0}),
    abi.DriverVersion: (32, {"umd": 0, "kmd": 16}),
    abi.BuildVersion: (16, {"graph_id": 0, "version": 8}),
    abi.DynshapeNum: (16, {"graph_id": 0, "ds_num": 8}),
    abi.DynshapeInfo: (24, {"graph_id": 0, "ds_idx": 8, "most": 12, "data": 16}),
    abi.DynshapeItem: (16, {"ds_idx": 0, "ds_data": 8}),
    abi.DynshapeParam: (16, {"input_shape_cnt": 0, "items": 8}),
    abi.SharedTensorNpu: (
        40,
        {"type": 0, "tensor_idx": 4, "id": 8, "pa": 16, "dmabuf_fd": 24, "offset": 28, "shared_case": 32},
    ),
    abi.SharedTensor: (8, {"npu": 0}),
    abi.DumpConfig: (32, {"dump_dir": 0, "prefix": 8, "output_prefix": 16, "misc_prefix": 24}),
}


@pytest.mark.parametrize("structure", LAYOUTS, ids=lambda s: s.__name__)
def test_sizes_and_offsets_are_those_of_the_header(structure):
    size, offsets = LAYOUTS[structure]
    assert ctypes.sizeof(structure) == size
    assert {name: getattr(structure, name).offset for name, _ in structure._fields_} == offsets


def test_ids_are_passed_as_64_bits():
    wide = ("noe_create_job", "noe_load_tensor", "noe_job_infer_sync", "noe_get_tensor_descriptor", "noe_unload_graph")
    assert len(abi.PROTOTYPES) == 31
    assert all(abi.PROTOTYPES[name][1] is ctypes.c_uint64 for name in wide)


def test_a_job_always_has_both_structures():
    config = abi.job_config(abi.Qos.HIGH, partition=3)
    assert config.npu.contents.misc == 0x103


def test_every_status_of_the_header_has_a_name_a_cause_and_a_fix():
    listed = [*range(0x2A), *range(0x30, 0x39), 0x200, 0x300, 0x301, *range(0x380, 0x384), *range(0x400, 0x408)]
    assert sorted(STATUSES) == [*listed, *range(0x480, 0x488)]
    assert all(s.name and s.cause and s.fix for code, s in STATUSES.items() if code)
    assert len({s.name for s in STATUSES.values()}) == len(STATUSES)


def test_an_error_says_the_call_its_status_and_what_to_do():
    error = failure("noe_init_context", 0x3)
    assert isinstance(error, DeviceError) and error.code == 0x3 and error.call == "noe_init_context"
    assert "0x3 (OPEN_DEV_FAIL)" in error.message and "driver" in error.cause and "doctor" in error.hint
    assert explain(0x999).name == "UNKNOWN"
