"""The vendor's library as ctypes sees it: structures, numbers and prototypes. Sizes and offsets are its header's.

Ids are 64 bits wide and start above 32: every function has its argument types, or each call would fail with 0xB.
Only what the library exports is here; its header declares twenty functions more.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char, c_char_p, c_float, c_int, c_int32, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from typing import Any

NPU = 1
"""device_type of noe_ioctl."""
TARGET_BYTES = 256
"""noe_get_target knows no length; the names seen have 10 characters."""
MOST_AXES = 64


class TensorKind(IntEnum):
    INPUT = 0
    OUTPUT = 1


class Qos(IntEnum):
    SLOW = 0
    HIGH = 1


class Ioctl(IntEnum):
    GET_BUILD_VERSION = 256
    GET_DS_NUM = 257
    GET_DS_DIM_NUM = 258
    GET_DS_INFO = 259
    GET_VERSION = 270


class TensorDesc(ctypes.Structure):
    """tensor_desc_t: real = (stored + zero_point) / scale."""

    _fields_ = (
        ("id", c_uint32),
        ("size", c_uint32),
        ("scale", c_float),
        ("zero_point", c_int32),
        ("data_type", c_uint32),
    )


class DynshapeItem(ctypes.Structure):
    _fields_ = (("ds_idx", c_uint32), ("ds_data", POINTER(c_uint32)))


class DynshapeParam(ctypes.Structure):
    _fields_ = (("input_shape_cnt", c_uint32), ("items", POINTER(DynshapeItem)))


class JobConfigNpu(ctypes.Structure):
    """job_config_npu_t; `misc` holds the partition (bits 0-3), the quality of service (8-11) and memory regions."""

    _fields_ = (
        ("misc", c_uint32),
        ("fm_idxes", POINTER(c_int32)),
        ("fm_idxes_cnt", c_int32),
        ("dynshape", POINTER(DynshapeParam)),
    )


class JobConfig(ctypes.Structure):
    _fields_ = (("npu", POINTER(JobConfigNpu)),)


class GraphConfigNpu(ctypes.Structure):
    _fields_ = (
        ("misc", c_uint32),
        ("wt_idxes", POINTER(c_int32)),
        ("wt_idxes_cnt", c_int32),
        ("extra_weight_path", c_char_p),
    )


class GraphConfig(ctypes.Structure):
    _fields_ = (("npu", POINTER(GraphConfigNpu)),)


class DriverVersion(ctypes.Structure):
    _fields_ = (("umd", c_char * 16), ("kmd", c_char * 16))


class BuildVersion(ctypes.Structure):
    _fields_ = (("graph_id", c_uint64), ("version", c_uint32))


class DynshapeNum(ctypes.Structure):
    _fields_ = (("graph_id", c_uint64), ("ds_num", POINTER(c_uint32)))


class DynshapeInfo(ctypes.Structure):
    """noe_dynshape_info_t and noe_dynshape_dim_num_t, which differ in the name of the last member."""

    _fields_ = (("graph_id", c_uint64), ("ds_idx", c_uint32), ("most", c_bool), ("data", POINTER(c_uint32)))


class SharedTensorNpu(ctypes.Structure):
    _fields_ = (
        ("type", c_uint32),
        ("tensor_idx", c_uint32),
        ("id", c_uint64),
        ("pa", c_uint64),
        ("dmabuf_fd", c_int32),
        ("offset", c_uint32),
        ("shared_case", c_int32),
    )


class SharedTensor(ctypes.Structure):
    _fields_ = (("npu", POINTER(SharedTensorNpu)),)


class DumpConfig(ctypes.Structure):
    _fields_ = (("dump_dir", c_char_p), ("prefix", c_char_p), ("output_prefix", c_char_p), ("misc_prefix", c_char_p))


Callback = ctypes.CFUNCTYPE(c_int, c_uint64, c_uint32)
_CTX = c_void_p
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "noe_add_batch": (_CTX, c_uint64, c_uint32, POINTER(c_void_p), POINTER(c_void_p)),
    "noe_clean_batch_queue": (_CTX, c_uint64, c_uint32),
    "noe_clean_job": (_CTX, c_uint64),
    "noe_config_batch_dump": (_CTX, c_uint64, c_uint32, c_uint64, POINTER(DumpConfig)),
    "noe_config_global": (_CTX, c_uint64, c_void_p),
    "noe_config_job": (_CTX, c_uint64, c_uint64, c_void_p),
    "noe_create_batch_queue": (_CTX, c_uint64, POINTER(c_uint32)),
    "noe_create_job": (_CTX, c_uint64, POINTER(c_uint64), POINTER(JobConfig)),
    "noe_debugger_bind_job": (_CTX, c_uint32, c_uint64),
    "noe_debugger_run_job": (_CTX, c_uint64),
    "noe_deinit_context": (_CTX,),
    "noe_finish_batch": (_CTX, c_uint64, c_uint32, POINTER(JobConfig)),
    "noe_get_cluster_count": (_CTX, c_uint32, POINTER(c_uint32)),
    "noe_get_core_count": (_CTX, c_uint32, c_uint32, POINTER(c_uint32)),
    "noe_get_error_message": (_CTX, c_uint32, POINTER(c_char_p)),
    "noe_get_job_status": (_CTX, c_uint64, POINTER(c_uint32), c_int32),
    "noe_get_partition_count": (_CTX, POINTER(c_uint32)),
    "noe_get_target": (_CTX, c_char_p),
    "noe_get_tensor": (_CTX, c_uint64, c_uint32, c_uint32, c_void_p),
    "noe_get_tensor_count": (_CTX, c_uint64, c_uint32, POINTER(c_uint32)),
    "noe_get_tensor_descriptor": (_CTX, c_uint64, c_uint32, c_uint32, POINTER(TensorDesc)),
    "noe_init_context": (POINTER(_CTX),),
    "noe_ioctl": (_CTX, c_uint32, c_uint32, c_void_p),
    "noe_job_infer_async": (_CTX, c_uint64, Callback),
    "noe_job_infer_sync": (_CTX, c_uint64, c_int32),
    "noe_load_graph": (_CTX, c_char_p, POINTER(c_uint64), POINTER(GraphConfig)),
    "noe_load_graph_helper": (_CTX, c_void_p, c_uint32, POINTER(c_uint64), POINTER(GraphConfig)),
    "noe_load_tensor": (_CTX, c_uint64, c_uint32, c_void_p),
    "noe_set_freq": (c_int,),
    "noe_specify_iobuf": (_CTX, c_uint64, POINTER(SharedTensor)),
    "noe_unload_graph": (_CTX, c_uint64),
}
"""Every exported function and its arguments; each returns a status, uint32."""


def bind(library: ctypes.CDLL) -> tuple[str, ...]:
    """Gives every function its types and returns the names that the library lacks."""
    lacking = []
    for name, arguments in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            lacking.append(name)
            continue
        function.argtypes = arguments
        function.restype = c_uint32
    return tuple(lacking)


def job_config(qos: Qos = Qos.SLOW, partition: int = 0) -> JobConfig:
    """Returns a configuration whose two structures are both there: the library does without neither."""
    npu = JobConfigNpu(misc=(partition & 0xF) | (int(qos) & 0xF) << 8)
    return JobConfig(ctypes.pointer(npu))
