"""Energy: counters that run over, sensors, and the files of external meters, good and bad."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from anynpu.errors import ConfigError, DeviceError
from anynpu.measure import energy, outcome
from anynpu.measure.energy import CsvMeter, Rapl, Reading, Sensors, account, find_meter, integrate, read_csv
from anynpu.measure.load import Runner, Settings
from anynpu.records.bench import EnergyForm


def zone(root, name, label, uj, most=262_143_328_850):
    folder = root / "sys/class/powercap" / name
    folder.mkdir(parents=True)
    for file, value in (("name", label), ("energy_uj", uj), ("max_energy_range_uj", most)):
        (folder / file).write_text(f"{value}\n")
    return folder


def sensor(root, index, **files):
    folder = root / "sys/class/hwmon" / f"hwmon{index}"
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def test_rapl_sums_the_packages_and_not_their_parts(tmp_path):
    one = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 500_000)
    two = zone(tmp_path, "intel-rapl:1", "package-1", 0)
    meter = find_meter(tmp_path)
    assert isinstance(meter, Rapl) and meter.source == "RAPL (package-0, package-1)"
    meter.start()
    time.sleep(0.02)
    (one / "energy_uj").write_text("4000000")
    (two / "energy_uj").write_text("500000")
    reading = meter.stop()
    assert reading.joules == pytest.approx(3.5) and reading.seconds >= 0.02 and reading.rate_hz is None


def test_a_rapl_counter_that_runs_over(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000, most=10_000_000)
    meter = find_meter(tmp_path)
    meter.start()
    (package / "energy_uj").write_text("2000000")
    assert meter.stop().joules == pytest.approx(3.0)


def test_a_rapl_counter_that_goes_away(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    meter = find_meter(tmp_path)
    meter.start()
    (package / "energy_uj").unlink()
    with pytest.raises(DeviceError, match="can no longer be read"):
        meter.stop()


def test_power_sensors_are_summed_and_sampled(tmp_path):
    sensor(tmp_path, 0, name="ina226", power1_input=2_000_000)
    sensor(tmp_path, 1, name="ina3221", in1_input=5000, curr1_input=400, in2_input=12000, curr3_input=1)
    meter = find_meter(tmp_path)
    assert isinstance(meter, Sensors) and meter.source == "hwmon (ina226, ina3221)"
    assert meter.watts() == pytest.approx(2.0 + 5.0 * 0.4)
    meter.start()
    time.sleep(0.3)
    reading = meter.stop()
    assert reading.watts == pytest.approx(4.0) and reading.samples >= 4 and 5 < reading.rate_hz < 40


def test_a_sensor_of_temperatures_is_no_meter(tmp_path):
    sensor(tmp_path, 0, name="coretemp", temp1_input=40000)
    assert find_meter(tmp_path) is None
    assert account(None, None, None, 10) == EnergyForm(why=energy.NONE)


def test_the_area_under_the_power():
    times = np.arange(0, 10.5, 0.5)
    reading = integrate(times, np.where(times < 5, 1.0, 3.0), (2.25, 4.25), "x")
    assert reading.joules == pytest.approx(2.0) and reading.samples == 4
    ramp = integrate(times, times, (1.1, 3.3), "x")
    assert ramp.joules == pytest.approx((3.3**2 - 1.1**2) / 2)


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ("time,watts\n0,1\n1,2\n", [1, 2]),
        ("Time (s), Power (W)\n0,1\n1,2\n", [1, 2]),
        ("t,mW\n0,1000\n1,2000\n", [1, 2]),
        ("# a meter\ntime_ms,volts,mA\n0,5,200\n1000,5,400\n", [1, 2]),
        ("time,current,voltage\n0,0.2,5\n1,0.4,5\n", [1, 2]),
        ("\ufefftimestamp,w\n1970-01-01T00:00:00+00:00,1\n1970-01-01T00:00:01+00:00,2\n", [1, 2]),
        ("time,watts\n0,1\n1,2\n2", [1, 2]),  # a logger in the middle of a line
    ],
)
def test_files_of_meters(tmp_path, text, watts):
    times, found = read_csv(write(tmp_path / "m.csv", text))
    np.testing.assert_allclose(times, [0, 1])
    np.testing.assert_allclose(found, watts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a header and at least two samples"),
        ("time,watts\n0,1\n", "a header and at least two samples"),
        ("a,b\n0,1\n1,2\n", "the columns are a, b"),
        ("time,volts\n0,1\n1,2\n", "the columns are time, volts"),
        ("time,watts\n0,1\n1,x\n2,3\n", "row 3 has no number under watts"),
        ("time,watts\n0,1\n1,nan\n2,3\n", "row 3 has no number under watts"),
        ("time,watts\n1,1\n0,1\n2,3\n", "the times do not rise"),
    ],
)
def test_files_that_are_none(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        CsvMeter(write(tmp_path / "m.csv", text))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        CsvMeter(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x01" * 10)
    with pytest.raises(ConfigError, match="cannot be read as CSV"):
        CsvMeter(tmp_path / "bytes.csv")
    with pytest.raises(ConfigError, match="cannot be read"):
        CsvMeter(tmp_path)


def test_windows_need_a_length(tmp_path):
    path = write(tmp_path / "m.csv", "time,watts\n0,1\n1,2\n")
    with pytest.raises(ConfigError, match="no length"):
        CsvMeter(path, (1.0, 1.0))
    for text in ("5,5", "6,5", "5", "a,b", "1,2,3", "1,inf"):
        with pytest.raises(ConfigError, match="--energy-window"):
            energy.parse_window("--energy-window", text)
    with pytest.raises(ConfigError, match="--energy-idle needs --energy-window"):
        CsvMeter(path, None, (0.0, 1.0))


def test_a_file_of_another_clock(tmp_path):
    meter = CsvMeter(write(tmp_path / "m.csv", "time,watts\n0,1\n1,2\n"))
    meter.start()
    time.sleep(0.01)
    with pytest.raises(ConfigError, match=r"the file holds 0\.000 to 1\.000 s") as told:
        meter.stop()
    assert "--energy-window" in told.value.hint


def test_gross_and_net():
    meter = Rapl([])
    found = account(meter, Reading(10.0, 2.0, 2), Reading(3.0, 1.5, 2), 100)
    assert found.gross_j_per_inference == pytest.approx(0.1) and found.idle_w == pytest.approx(2.0)
    assert found.net_j_per_inference == pytest.approx((10 - 2 * 2) / 100) and "estimate" in found.label
    assert account(meter, Reading(10.0, 2.0, 2), None, 100).net_j is None


class Load:
    """A subject that draws 2 W while it is called, 1 W at rest, into the file of a meter that runs beside."""

    what, scope = "a load", "infer"

    def __init__(self):
        self.busy = False
        self.call = self.work

    def work(self):
        self.busy = True
        time.sleep(0.01)
        return 0

    def check(self, result):
        return

    def stages(self):
        return {}

    def outputs(self):
        return {}

    def close(self):
        return


def test_a_bench_beside_a_running_meter(tmp_path):
    path, over, subject = tmp_path / "m.csv", threading.Event(), Load()

    def log():
        with path.open("w") as stream:
            stream.write("time,watts\n")
            while not over.wait(0.01):
                stream.write(f"{time.time()},{2.0 if subject.busy else 1.0}\n")
                stream.flush()

    logger = threading.Thread(target=log)
    logger.start()
    try:
        time.sleep(0.1)
        meter = CsvMeter(path)
        runner = Runner(lambda: subject, Settings(runs=40, warm_up=0, idle_s=0.3))
        subject.busy = False  # the cold start drew power; at rest it does not
        found = outcome.to_record(runner.run(meter), meter).energy
    finally:
        over.set()
        logger.join()
    assert found.source == "meter's file m.csv" and found.idle_w == pytest.approx(1.0, abs=0.05)
    assert found.average_w == pytest.approx(2.0, abs=0.15) and 30 < found.rate_hz < 120
    assert found.net_j_per_inference == pytest.approx(found.gross_j_per_inference / 2, rel=0.15)


def test_windows_in_the_files_own_time(tmp_path):
    rows = "".join(f"{t / 10},{1 if t < 50 else 3}\n" for t in range(101))
    path = write(tmp_path / "m.csv", "time,watts\n" + rows)
    meter = CsvMeter(path, (6.0, 9.0), (1.0, 4.0))
    result = Runner(Load, Settings(runs=5, warm_up=0, idle_s=0.01)).run(meter)
    found = outcome.to_record(result, meter).energy
    assert (found.idle_w, found.average_w) == (pytest.approx(1.0), pytest.approx(3.0))
    assert found.net_j_per_inference == pytest.approx(6.0 / 5)


def test_energy_that_fails_leaves_the_latencies(tmp_path):
    meter = CsvMeter(write(tmp_path / "m.csv", "time,watts\n0,1\n1,2\n"))
    result = Runner(Load, Settings(runs=5, warm_up=0, idle_s=0.0)).run(meter)
    found = outcome.to_record(result, meter)
    assert found.complete and found.runs == 5 and "samples between" in found.energy.why
