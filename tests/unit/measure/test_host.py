"""The machine around a measurement, real and described in a folder."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np

from anynpu.measure import host
from anynpu.measure.timer import clock
from anynpu.records.host import Span, Used


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def machine(root, khz=(2_000_000, 3_000_000), temp=45_500):
    for core, value in enumerate(khz):
        folder = root / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        write(folder / "scaling_cur_freq", value)
        write(folder / "scaling_governor", "powersave")
    write(root / "sys/devices/system/cpu/intel_pstate/no_turbo", "0")
    write(root / "sys/class/thermal/thermal_zone0/temp", temp)
    write(root / "proc/cpuinfo", "processor : 0\nmodel name : Toy CPU")


def test_a_described_machine(tmp_path):
    machine(tmp_path)
    found = host.describe(tmp_path)
    assert (found.cpu, found.governor, found.turbo) == ("Toy CPU", "powersave", True)
    assert host.frequency_mhz(tmp_path) == 3000 and host.temperature_c(tmp_path) == 45.5


def test_a_machine_that_says_nothing(tmp_path):
    found = host.describe(tmp_path)
    assert found.governor is None and found.turbo is None
    assert host.frequency_mhz(tmp_path) is None and host.temperature_c(tmp_path) is None
    watch = host.Watch(tmp_path, every_ns=0)
    watch.start()
    watch.tick(clock())
    used = watch.stop()
    assert used.frequency_mhz is None and used.other_cores_used is None and used.stolen_cores is None
    assert used.peak_rss_of == "the whole process" and used.rss_delta_bytes is None and used.peak_rss_bytes > 0


def test_damaged_numbers_are_not_zero(tmp_path):
    write(tmp_path / "sys/class/thermal/thermal_zone0/temp", "hot")
    assert host.temperature_c(tmp_path) is None


def test_throttling_and_frequency_changes(tmp_path):
    machine(tmp_path)
    watch = host.Watch(tmp_path, every_ns=0)
    watch.start()
    began = clock()
    machine(tmp_path, khz=(1_500_000, 1_600_000))
    ended = clock()
    watch.tick(ended)
    used = watch.stop()
    assert host.throttled(used) and used.frequency_mhz == Span(first=3000, min=1600, max=3000, last=1600)
    watch.looks[-1] = replace(watch.looks[-1], switches=watch.looks[0].switches + 2)
    watch.looks[1] = replace(watch.looks[1], switches=watch.looks[0].switches + 2)
    switched, changed = watch.causes(began, ended)
    assert switched.startswith("involuntary context switches: 2 in the ") and changed == "the frequency changed"
    assert not host.throttled(Used())


def test_cpu_time_of_all_threads_is_counted():
    def work():
        # No matrix product: the threads of a BLAS go on spinning after it, and the idle window would see them.
        array = np.random.default_rng(0).random((300, 300))
        while time.thread_time() < 0.2:  # of this thread's own CPU time, however busy the machine is
            array = np.tanh(array)

    watch = host.Watch()
    watch.start()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    busy = watch.stop()
    watch = host.Watch()
    watch.start()
    time.sleep(0.2)
    idle = watch.stop()
    assert busy.cpu_user_s + busy.cpu_system_s > 0.38 and idle.cores_used < 0.2
    assert busy.cores_used == (busy.cpu_user_s + busy.cpu_system_s) / busy.wall_s


WINDOW = """
import json
import numpy as np
from anynpu.measure import host
np.ones(30_000_000).sum()  # 240 MB before the window
watch = host.Watch()
watch.start()
np.ones(5_000_000).sum()
print(json.dumps(vars(watch.stop())))
"""


def test_peak_memory_is_that_of_the_window():
    # A process of its own: threads that other tests left behind give memory back whenever they like.
    used = json.loads(subprocess.run([sys.executable, "-c", WINDOW], check=True, capture_output=True).stdout)
    if used["peak_rss_of"] == "the measured window":  # where the kernel lets us reset the peak
        assert 35e6 < used["rss_delta_bytes"] < 120e6
    assert used["peak_rss_bytes"] > 40e6


def test_the_collector_is_seen_and_put_back():
    gc.enable()  # another test may have left it off
    watch = host.Watch()
    watch.start()
    began = clock()
    gc.collect()
    ended = clock()
    with host.without_gc():
        assert not gc.isenabled()
    used = watch.stop()
    assert gc.isenabled() and used.gc_collections == 2 and not gc.callbacks.count(watch._collected)
    assert watch.causes(began, ended)[0] == "garbage collection" and watch.causes(0, began - 1) == []
