"""Our structures, numbers and symbols beside the vendor's own header and library, where those are at hand.

They are in the folder `noe` of ANYNPU_TEST_DATA: cix_noe_standard_api.h and libnoe.so (aarch64) of cix-noe-umd.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import pytest

from anynpu.errors import ToolMissing
from anynpu.runtime.noe import abi
from anynpu.runtime.noe.cix import DTYPES
from anynpu.runtime.noe.library import Library
from anynpu.runtime.noe.status import STATUSES
from anynpu.testing import noe

VENDORS = {
    abi.TensorDesc: "tensor_desc_t",
    abi.JobConfigNpu: "job_config_npu_t",
    abi.JobConfig: "job_config_t",
    abi.GraphConfigNpu: "graph_config_npu_t",
    abi.GraphConfig: "graph_config_t",
    abi.DriverVersion: "noe_driver_version_t",
    abi.BuildVersion: "noe_cix_buildversion_t",
    abi.DynshapeNum: "noe_dynshape_num_t",
    abi.DynshapeInfo: "noe_dynshape_info_t",
    abi.DynshapeItem: "noe_dynshape_item_t",
    abi.DynshapeParam: "noe_dynshape_param_t",
    abi.SharedTensorNpu: "shared_tensor_info_npu_t",
    abi.SharedTensor: "shared_tensor_info_t",
    abi.DumpConfig: "job_config_dump_t",
}
OTHER_NAMES = {
    **{"npu": {"job_config_t": "conf_j_npu", "graph_config_t": "conf_g_npu", "shared_tensor_info_t": "st_npu"}},
    **{"umd": "umd_version", "kmd": "kmd_version", "most": "max_threshhold", "items": "shape_items"},
    **{
        "data": "ds_data",
        "shared_case": "shared_case_type",
        "offset": "offset_in_dmabuf",
        "version": "noe_cix_buildversion",
    },
}


@pytest.fixture(scope="module")
def vendor(test_data):
    folder = test_data / "noe"
    if not (folder / "cix_noe_standard_api.h").is_file() or shutil.which("cc") is None:
        pytest.skip(f"put the vendor's header and library into {folder}; needs a C compiler")
    return folder


def theirs(field: str, structure: str) -> str | None:
    name = OTHER_NAMES.get(field, field)
    return name.get(structure) if isinstance(name, dict) else name


def compiled(vendor, folder, body):
    """Returns what a program with the vendor's header prints, as numbers."""
    head = "#include <stdbool.h>\n#include <stdint.h>\n#include <stddef.h>\n#include <stdio.h>\n"
    (folder / "p.c").write_text(f'{head}#include "cix_noe_standard_api.h"\nint main(void) {{\n{body}\nreturn 0; }}\n')
    subprocess.run(["cc", "-w", f"-I{vendor}", folder / "p.c", "-o", folder / "p"], check=True, capture_output=True)
    return [int(n) for n in subprocess.run([folder / "p"], capture_output=True, text=True).stdout.split()]


def test_sizes_and_offsets(vendor, tmp_path):
    asked, wanted = [], []
    for ours, name in VENDORS.items():
        asked.append(f"sizeof({name})")
        wanted.append(ctypes.sizeof(ours))
        for field, _ in ours._fields_:
            if member := theirs(field, name):
                asked.append(f"offsetof({name}, {member})")
                wanted.append(getattr(ours, field).offset)
    found = compiled(vendor, tmp_path, "\n".join(f'printf("%zu\\n", {each});' for each in asked))
    assert dict(zip(asked, found, strict=True)) == dict(zip(asked, wanted, strict=True)) and len(asked) > 50


def test_statuses_and_types(vendor):
    text = (vendor / "cix_noe_standard_api.h").read_text("utf-8", "replace")
    listed = re.findall(r"NOE_STATUS_(?:ERROR_)?(\w+)\s*=\s*(0x[0-9A-Fa-f]+)", text)
    assert {int(code, 16): name for name, code in listed} == {code: s.name for code, s in STATUSES.items()}
    kinds = dict(re.findall(r"NOE_DATA_TYPE_(\w+)\s*=\s*(\w+)", text))
    short = {"uint": "U", "int": "S", "float": "F"}
    for code, name in DTYPES.items():
        letter = next((short[s] for s in short if name.startswith(s)), "BOOL")
        bits = "".join(c for c in name if c.isdigit())
        assert int(kinds[letter + bits], 0) == code


def test_the_priority_is_where_the_header_has_it(vendor, tmp_path):
    body = 'job_config_npu_t c; c.misc = 0; c.qos_level = 1; c.partition_id = 3; printf("%u\\n", c.misc);'
    assert compiled(vendor, tmp_path, body) == [abi.job_config(abi.Qos.HIGH, 3).npu.contents.misc]


def test_the_library_has_our_functions_and_no_others(vendor, tmp_path):
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", vendor / "libnoe.so"], capture_output=True, text=True
    ).stdout
    assert sorted(re.findall(r"\b(noe_\w+)$", symbols, re.M)) == sorted(abi.PROTOTYPES)
    fake = subprocess.run(["nm", "-D", "--defined-only", noe.build_fake(tmp_path)], capture_output=True, text=True)
    assert sorted(re.findall(r"\b(noe_\w+)$", fake.stdout, re.M)) == sorted(abi.PROTOTYPES)


def test_a_library_for_another_machine_is_refused(vendor):
    import platform

    if platform.machine() == "aarch64":
        pytest.skip("it is for this machine")
    with pytest.raises(ToolMissing, match="cannot be loaded"):
        Library(vendor / "libnoe.so")
