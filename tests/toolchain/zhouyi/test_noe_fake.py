"""The fake libnoe: the real one's symbols, statuses and traps."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from fake_noe import run_program, small

from anynpu.runtime.noe import abi
from anynpu.runtime.noe.cix import read_cix
from anynpu.runtime.noe.library import Library
from anynpu.testing import noe
from anynpu.testing.cix import program_bytes

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return noe.build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def raw(library):
    """The functions themselves, with a context; what is left open is closed."""
    with noe.switches(library, CLEAN_EXIT=1):
        calls = Library(library).calls
        context = ctypes.c_void_p()
        assert calls.noe_init_context(ctypes.byref(context)) == 0
        yield calls, context
        calls.noe_deinit_context(context)


def load(calls, context, program, config=True):
    graph = ctypes.c_uint64()
    inner = abi.GraphConfigNpu()
    given = ctypes.byref(abi.GraphConfig(ctypes.pointer(inner))) if config else None
    keep = ctypes.create_string_buffer(program, len(program)) if program else ctypes.create_string_buffer(1)
    status = calls.noe_load_graph_helper(context, ctypes.addressof(keep), len(program), ctypes.byref(graph), given)
    return status, graph.value, keep


def job_of(calls, context, graph):
    job = ctypes.c_uint64()
    config = abi.job_config()
    assert calls.noe_create_job(context, graph, ctypes.byref(job), ctypes.byref(config)) == 0
    return job.value


@pytest.fixture
def program(tmp_path):
    return bytes(read_cix(small(tmp_path / "m").main).elf)


def test_it_exports_exactly_the_symbols_of_the_real_library(library):
    if shutil.which("nm") is None:
        pytest.skip("needs nm (package binutils)")
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True).stdout.splitlines()
    assert sorted(line.split()[-1] for line in lines) == sorted(abi.PROTOTYPES)


def test_refused_programs_have_the_real_statuses(raw, program):
    calls, context = raw
    damaged = program[:40] + bytes(12) + program[52:]
    other = program_bytes([noe.TEXT], [noe.EMBEDDING], device=4 << 16 | 1204)
    for content, status in ((b"", 0x15), (damaged, 0x9), (program[:300], 0x9), (other, 0xA)):
        assert load(calls, context, content)[0] == status


def test_ids_are_wide_and_those_of_jobs_are_given_out_again(raw, program):
    calls, context = raw
    _, graph, _keep = load(calls, context, program)
    assert graph >= 1 << 32
    one = job_of(calls, context, graph)
    two = job_of(calls, context, graph)
    assert one != two and calls.noe_clean_job(context, one) == 0 and calls.noe_clean_job(context, one) == 0
    assert calls.noe_job_infer_sync(context, one, 100) == 0x10
    assert job_of(calls, context, graph) == one
    assert calls.noe_unload_graph(context, graph) == 0 and calls.noe_unload_graph(context, graph) == 0xB
    assert calls.noe_unload_graph(context, graph & 0xFFFFFFFF) == 0xB


def test_statuses_of_jobs(raw, program):
    calls, context = raw
    _, graph, _keep = load(calls, context, program)
    job, data = job_of(calls, context, graph), ctypes.create_string_buffer(64)
    assert calls.noe_load_tensor(context, job, 0, None) == 1
    assert calls.noe_load_tensor(context, job, 7, ctypes.addressof(data)) == 0x1A
    assert calls.noe_get_tensor(context, job, 1, 0, ctypes.addressof(data)) == 0x14
    assert calls.noe_job_infer_sync(context, job, 100) == 0  # without any input
    assert calls.noe_get_tensor(context, job, 1, 9, ctypes.addressof(data)) == 0x1A
    assert calls.noe_get_tensor(context, job, 6, 0, ctypes.addressof(data)) == 0x1E
    count = ctypes.c_uint32()
    assert calls.noe_get_tensor_count(context, graph, 5, ctypes.byref(count)) == 0x1E
    empty = abi.JobConfig()
    assert calls.noe_create_job(context, graph, ctypes.byref(ctypes.c_uint64()), ctypes.byref(empty)) == 0x1
    assert calls.noe_set_freq(1) == 0x3


def test_deinit_twice_is_refused(library):
    with noe.switches(library, CLEAN_EXIT=1):
        calls, context = Library(library).calls, ctypes.c_void_p()
        calls.noe_init_context(ctypes.byref(context))
        assert (calls.noe_deinit_context(context), calls.noe_deinit_context(context)) == (0, 2)


HEAD = """
import ctypes, sys, threading
from pathlib import Path
from anynpu.runtime.noe import abi
from anynpu.runtime.noe.library import Library
from anynpu.runtime.noe.cix import read_cix
from anynpu.runtime.noe.device import Device, Graph, Memory
elf = bytearray(read_cix(Path(sys.argv[2])).elf)
keep = (ctypes.c_char * len(elf)).from_buffer(elf)
device = Device(Library(Path(sys.argv[1]), owns_output=True))
calls, context = device.library.calls, device.handle
program = Memory(ctypes.addressof(keep), len(elf))
"""
TRAPS = {
    "create_job with NULL": (
        "g = Graph(device, program); calls.noe_create_job(context, g._id, ctypes.byref(ctypes.c_uint64()), None)",
        "the configuration is NULL",
    ),
    "load with NULL": (
        "calls.noe_load_graph_helper(context, program.address, len(elf), ctypes.byref(ctypes.c_uint64()), None)",
        "the configuration is NULL",
    ),
    "noe_load_graph": ("calls.noe_load_graph(context, b'/x', None, None)", "crashes on most damaged files"),
    "a freed program": (
        "g = Graph(device, program); elf[60] ^= 255; g._ready_job()",
        "changed or freed before noe_unload_graph",
    ),
    "another thread": (
        "t = threading.Thread(target=device.info); t.start(); t.join()",
        "called from another thread",
    ),
    "a cleaned job": (
        "g = Graph(device, program); j = g._ready_job(); g._discard_job(); calls.noe_job_infer_sync(context, j, 9)",
        "the job was cleaned",
    ),
    "deinit after 0x8": (
        "elf[:4] = b'none'\ntry: Graph(device, program)\nexcept Exception: pass\ncalls.noe_deinit_context(context)",
        "a graph was refused with 0x8",
    ),
    "a second context": ("Device(device.library)", "there is a context already"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_it_ends_where_the_real_library_crashes(trap, library, tmp_path):
    program, sentence = TRAPS[trap]
    switches = noe.environment(library, ONE_THREAD=1, TRAP_CLEANED=1)
    done = run_program(HEAD + program, library, small(tmp_path / "m").main, **switches)
    assert done.returncode == -6 and sentence in done.stderr


@pytest.mark.parametrize(("ending", "status"), [("", -11), ("g = Graph(device, program)", -6), ("device.close()", 0)])
def test_a_process_that_keeps_the_context_ends_as_with_the_real_library(ending, status, library, tmp_path):
    done = run_program(HEAD + ending, library, small(tmp_path / "m").main, **noe.environment(library))
    assert done.returncode == status


SHORT = """
from anynpu.testing import noe
g = Graph(device, program)
kept, inside = noe.guarded(int(sys.argv[3]))
job = g._ready_job()
calls.noe_load_tensor(context, job, 0, inside.ctypes.data)
calls.noe_job_infer_sync(context, job, 100)
kept, inside = noe.guarded(int(sys.argv[4]))
calls.noe_get_tensor(context, job, 1, 0, inside.ctypes.data)
device.close()
"""


@pytest.mark.parametrize(("given", "taken", "status"), [(6, 4, 0), (5, 4, -11), (6, 3, -11)])
def test_exactly_the_bytes_of_the_descriptor_are_touched(given, taken, status, library, tmp_path):
    done = run_program(HEAD + SHORT, library, small(tmp_path / "m").main, given, taken, **noe.environment(library))
    assert done.returncode == status, done.stderr


def test_refusals_are_printed_to_stdout_with_a_backtrace(library):
    program = "import ctypes,sys; c = ctypes.CDLL(sys.argv[1]); p = ctypes.c_void_p(1); print(c.noe_init_context("
    program += "ctypes.byref(p)), p.value)"
    done = run_program(program, library, **noe.environment(library, INIT_STATUS=0x3))
    assert "[UMD ERROR] noe_init_context: status 0x3" in done.stdout and "libnoe.so" in done.stdout
    assert done.stdout.splitlines()[-1] == "3 None"


def test_the_three_synthetic_models_are_what_python_predicts(library, tmp_path):
    from anynpu.runtime.noe.session import NoeSession

    draw = np.random.default_rng(5)
    cases = (
        (noe.clip_text, draw.integers(0, 49408, (1, 77), dtype=np.int32), noe.expect_text),
        (noe.clip_image, draw.integers(-128, 128, (1, 3, 224, 224)).astype(np.int8), noe.expect_image),
        (noe.yolo, draw.integers(0, 256, (1, 3, 640, 640)).astype(np.uint8), noe.expect_boxes),
    )
    with noe.switches(library):
        for make, given, expect in cases:
            session = NoeSession(make(tmp_path / make.__name__))
            (got,) = session.run({session.inputs[0].name: given}).values()
            assert got.dtype == session.outputs[0].dtype and np.array_equal(got, expect(given))
            session.close()
