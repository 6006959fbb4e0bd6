"""What an agent measures, and the unit that starts it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from anynpu.apps.watch.agent import AgentSettings
from anynpu.apps.watch.seed_method import line
from anynpu.apps.watch.sensors import NpuSensors, Sensors, plain
from anynpu.drivers.root import Root
from anynpu.errors import ConfigError


def write(root, path, text):
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_machine_is_measured_and_rates_come_with_the_second_reading():
    sensors = Sensors()
    first, second = sensors.read(), sensors.read()
    for metrics in (first, second):
        assert 0 <= metrics["cpu_percent"] <= 100 and 0 < metrics["memory_percent"] < 100
        assert metrics["load1"] >= 0 and any(name.startswith("disk_") for name in metrics)
    assert "net_received_bytes_per_s" in second and "net_received_bytes_per_s" not in first


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "/sys/class/devfreq/fdab0000.npu/load": "37@1000000000Hz\n",
                "/sys/class/thermal/thermal_zone6/type": "npu-thermal\n",
                "/sys/class/thermal/thermal_zone6/temp": "44400\n",
                "/sys/class/thermal/thermal_zone0/type": "soc-thermal\n",
                "/sys/class/thermal/thermal_zone0/temp": "90000\n",
            },
            {"npu_percent": 37.0, "npu_temperature_celsius": 44.4},
        ),
        (
            {"/sys/kernel/debug/rknpu/load": "NPU load:  Core0: 12%, Core1:  0%, Core2: 30%,\n"},
            {"npu_percent": 14.0},
        ),
        (
            {"/sys/class/hwmon/hwmon3/name": "amdxdna\n", "/sys/class/hwmon/hwmon3/temp1_input": "51000\n"},
            {"npu_temperature_celsius": 51.0},
        ),
        ({"/sys/class/thermal/thermal_zone1/type": "npu\n", "/sys/class/thermal/thermal_zone1/temp": "x\n"}, {}),
        ({}, {}),
    ],
)
def test_the_npu_is_read_where_sysfs_has_it(tmp_path, files, expected):
    for path, text in files.items():
        write(tmp_path, path, text)
    assert NpuSensors(Root(tmp_path)).read() == pytest.approx(expected)


def test_busy_time_becomes_a_share(tmp_path):
    write(tmp_path, "/sys/class/accel/accel0/device/npu_busy_time_us", "1000000")
    sensors = NpuSensors(Root(tmp_path))
    assert sensors.read() == {}
    write(tmp_path, "/sys/class/accel/accel0/device/npu_busy_time_us", "1000000")
    assert sensors.read() == {"npu_percent": 0.0}
    assert plain("Package id 0/ä") == "package_id_0"


def test_the_line_of_the_description():
    metrics = {
        "cpu_percent": 2.4,
        "memory_percent": 25.5,
        "load1": 0.46,
        "temperature_soc_celsius": 44.0,
        "disk_root_percent": 19.7,
    }
    assert line("mybox", metrics) == "host mybox cpu 2.4% ram 25.5% load 0.46 temps [soc 44°C] disks [/ 19.7%]"


@pytest.mark.parametrize("url", ["collector:8620", "ftp://x", "http://", ""])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError):
        AgentSettings(url, "host")


def test_the_unit_repeats_the_flags_and_carries_no_token(tmp_path):
    (tmp_path / "token").write_text("very-secret-token")
    argv = [sys.executable, "-m", "anynpu", "watch", "agent", "--collector", "http://c:8620", "--interval", "10"]
    argv += ["--token-file", str(tmp_path / "token"), "--systemd", "-"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "watch agent --collector http://c:8620 --interval 10.0 --token-file %d/token" in text
    assert f"LoadCredential=token:{tmp_path}/token" in text and "very-secret" not in text
    assert "ProtectSystem=strict" in text and "DynamicUser=yes" in text
