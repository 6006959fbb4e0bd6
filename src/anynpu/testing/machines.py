"""Machines that never were: metrics as servers and boards have them.

The model is of causes, and knows nothing of any detector. Demand has harmonics of the day, a weekend, good and bad
days, autocorrelated noise and bursts with heavy tails. Jobs run by the hour, night and week, start late and take as
long as they take. CPU follows demand and jobs, load and temperatures follow the CPU with their own inertia, memory
follows what is cached, disks fill and are rotated, machines are rebooted. Sensors round. All parameters of a machine
are drawn from wide ranges by its own random generator.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
DAY_S, WEEK_S = 86_400, 604_800
METRICS = (
    "cpu_percent",
    "memory_percent",
    "load1",
    "temperature_soc_celsius",
    "disk_root_percent",
    "disk_io_bytes_per_s",
    "net_received_bytes_per_s",
    "net_sent_bytes_per_s",
    "npu_percent",
    "npu_temperature_celsius",
)
CPU, MEMORY, LOAD, TEMPERATURE, DISK, DISK_IO, RECEIVED, SENT, NPU, NPU_TEMPERATURE = range(len(METRICS))
START_S = 1_767_571_200.0
"""Monday 2026-01-05 00:00 UTC."""


def smoothed(noise: Numbers, time_constant: float) -> Numbers:
    """Returns a series that follows another with inertia (a first-order low pass), its time constant in samples."""
    length = int(min(noise.size, max(2.0, 12 * time_constant)))
    kernel = np.exp(-np.arange(length) / max(time_constant, 1e-3))
    padded = np.concatenate([np.full(length, noise[: length * 2].mean()), noise])
    size = 1 << int(np.ceil(np.log2(padded.size + length)))
    product = np.fft.irfft(np.fft.rfft(padded, size) * np.fft.rfft(kernel / kernel.sum(), size), size)
    return np.asarray(product[length : length + noise.size], np.float64)


class World:
    """One machine and what happens on it."""

    def __init__(self, rng: np.random.Generator, time_s: Numbers, interval_s: float) -> None:
        self.rng, self.time_s, self.interval_s = rng, time_s, interval_s
        self.size = time_s.size
        self.minute = 60.0 / interval_s
        self.hour_of_day = (time_s % DAY_S) / 3600
        self.day = ((time_s - START_S) // DAY_S).astype(int)
        self.role = str(rng.choice(["web", "database", "batch", "inference", "idle"], p=[0.3, 0.2, 0.2, 0.2, 0.1]))
        self.cores = int(rng.choice([4, 8, 12, 16, 32]))
        self.seasonal = {"web": 1.0, "database": 0.7, "inference": 0.6, "batch": 0.15, "idle": 0.05}[self.role]
        self.seasonal *= rng.uniform(0.6, 1.3)
        self.reboots = [
            (int(rng.integers(self.size)), int(rng.uniform(1, 4) * self.minute) + 1)
            for _ in range(rng.poisson(self.size * interval_s / WEEK_S / 4))
        ]
        self.jobs = self._jobs()
        # The daily and weekly course of demand, about 0 to 1
        peak = rng.uniform(9, 21)
        angle = 2 * np.pi * (self.hour_of_day - peak) / 24
        day = 0.5 + 0.5 * np.cos(angle) + rng.uniform(0, 0.35) * np.cos(2 * angle + rng.uniform(0, 6.3))
        day += rng.uniform(0, 0.15) * np.cos(3 * angle + rng.uniform(0, 6.3))
        weekend = np.where(self.day % 7 >= 5, rng.uniform(0.25, 1.05), 1.0)
        self.profile = np.asarray(np.clip(day, 0.02, None) * weekend, np.float64)
        days = np.exp(rng.normal(0, rng.uniform(0.03, 0.12), self.day.max() + 1))[self.day]
        wander = smoothed(rng.standard_normal(self.size), rng.uniform(5, 60) * self.minute)
        wander *= rng.uniform(0.05, 0.25) / max(wander.std(), 1e-9)
        quick = rng.standard_t(rng.uniform(2.5, 6), self.size) * rng.uniform(0.01, 0.05)
        # Short crowds: Poisson in time, Pareto in height, a few minutes long
        height = np.zeros(self.size)
        for first in rng.integers(0, self.size, rng.poisson(rng.uniform(2, 40) * self.size * self.interval_s / WEEK_S)):
            length = 1 + int(rng.exponential(5) * self.minute)
            height[first : first + length] += min(0.08 * (1 + rng.pareto(2.2)), 1.2)
        self.demand = np.asarray(np.clip(self.profile * days * np.exp(wander) + quick, 0, None) + height, np.float64)

    def _jobs(self) -> list[tuple[Numbers, float, float, float]]:
        """Returns jobs that run by the clock: when they are active, and what they take of CPU, disk and network."""
        rng, jobs = self.rng, []
        kinds = [("hourly", rng.uniform() < 0.5), ("nightly", rng.uniform() < 0.8), ("weekly", rng.uniform() < 0.5)]
        if self.role == "batch":
            kinds += [("nightly", True), ("hourly", True)]
        for kind, wanted in kinds:
            if not wanted:
                continue
            active = np.zeros(self.size)
            period = {"hourly": 3600 * rng.choice([1, 2, 4, 6]), "nightly": DAY_S, "weekly": WEEK_S}[kind]
            offset = rng.uniform(0, period) if kind != "nightly" else rng.uniform(0, 6) * 3600
            usual_s = {"hourly": rng.uniform(60, 400), "nightly": rng.uniform(600, 5400), "weekly": 7200.0}[kind]
            for start in np.arange(START_S + offset, self.time_s[-1], period):
                late = rng.exponential(rng.choice([5.0, 60.0, 300.0]))
                first = int((start + late - START_S) / self.interval_s)
                active[first : first + 1 + int(usual_s * np.exp(rng.normal(0, 0.15)) / self.interval_s)] = 1
            jobs.append((active, rng.uniform(5, 55), 10 ** rng.uniform(6.5, 8.3), 10 ** rng.uniform(5, 7.7)))
        return jobs

    def values(self) -> Numbers:
        """Returns every metric as it is, before its sensor rounds it."""
        rng, metrics = self.rng, np.zeros((self.size, len(METRICS)))
        base = {"web": 8, "database": 12, "batch": 4, "inference": 8, "idle": 1.5}[self.role] * rng.uniform(0.5, 1.6)
        cpu = base + self.seasonal * rng.uniform(15, 55) * self.demand + sum(a * c for a, c, _, _ in self.jobs)
        cpu = cpu * np.exp(rng.standard_t(4, self.size) * rng.uniform(0.02, 0.12)) + rng.exponential(0.6, self.size)
        for first, length in self.reboots:
            cpu[first + length : first + length + int(3 * self.minute)] += rng.uniform(20, 60)
        metrics[:, CPU] = np.clip(cpu, 0, 100)
        metrics[:, MEMORY] = self._memory()
        queue = smoothed(metrics[:, CPU] / 100 * self.cores, 1.0 * self.minute)
        metrics[:, LOAD] = np.clip(queue * rng.uniform(0.8, 1.4) * (1 + 0.1 * rng.standard_t(5, self.size)), 0, None)
        rng = self.rng
        sun = rng.uniform(0.3, 3) * np.cos(2 * np.pi * (self.hour_of_day - 15) / 24)
        cooler = rng.uniform(0, 0.8) * np.sin(2 * np.pi * self.time_s / (rng.uniform(8, 45) * 60))
        slow = smoothed(rng.standard_normal(self.size), 2 * DAY_S / self.interval_s)
        room = np.asarray(22 + sun + cooler + slow * rng.uniform(0.2, 1.2) / max(slow.std(), 1e-9), np.float64)
        heat = rng.uniform(15, 35) * smoothed(metrics[:, CPU] / 100, rng.uniform(2, 9) * self.minute)
        metrics[:, TEMPERATURE] = room + rng.uniform(8, 18) + heat + rng.normal(0, rng.uniform(0.1, 0.7), self.size)
        rng, days = self.rng, (self.time_s - START_S) / DAY_S
        period = rng.choice([1.0, 7.0])
        logs = ((days + rng.uniform(0, period)) % period) / period * rng.uniform(0.1, 4)
        metrics[:, DISK] = np.asarray(
            np.clip(rng.uniform(12, 65) + rng.uniform(0, 0.15) * days + logs, 0, 99), np.float64
        )
        rng = self.rng
        for column, part in ((RECEIVED, 1.0), (SENT, rng.uniform(0.1, 8))):
            rate = 10 ** rng.uniform(3.2, 6) * part * (0.03 + self.seasonal * self.demand)
            rate *= np.exp(rng.standard_t(4, self.size) * rng.uniform(0.1, 0.45))
            metrics[:, column] = rate + sum(active * net * part * 0.3 for active, _, _, net in self.jobs)
        io = 10 ** rng.uniform(3.5, 6.2) * (0.1 + self.demand) * np.exp(rng.standard_t(3.5, self.size) * 0.5)
        metrics[:, DISK_IO] = io + sum(active * disk for active, _, disk, _ in self.jobs)
        metrics[:, DISK_IO] *= rng.random(self.size) > rng.choice([0.0, 0.3])  # nothing is written in many intervals
        if self.role == "inference":
            busy = 90 * np.clip(self.demand, 0, 1.1) * rng.uniform(0.4, 1.0) + rng.normal(0, 4, self.size)
        else:
            active, *_ = self.jobs[0] if self.jobs else (np.zeros(self.size),)
            busy = active * rng.uniform(10, 80) * (rng.uniform() < 0.4) + rng.normal(0, 1.0, self.size)
        metrics[:, NPU] = np.clip(busy, 0, 100)
        heat = rng.uniform(5, 25) * smoothed(metrics[:, NPU] / 100, 4 * self.minute)
        metrics[:, NPU_TEMPERATURE] = room + rng.uniform(6, 14) + heat + rng.normal(0, rng.uniform(0.1, 0.5), self.size)
        return metrics

    def rounded(self, values: Numbers) -> Numbers:
        """Returns the values as the sensors give them."""
        rng = self.rng
        steps = (0.1, 0.1, 0.01, rng.choice([0.1, 0.5, 1.0]), 0.1, 1.0, 1.0, 1.0, 1.0, rng.choice([0.1, 1.0]))
        return np.asarray(np.round(values / steps) * steps, np.float64)

    def _memory(self) -> Numbers:
        """Returns what is used: a base, caches that grow and are dropped, what demand holds, a slow wander."""
        rng = self.rng
        period = rng.uniform(2, 30) * 3600 / self.interval_s
        saw = ((np.arange(self.size) + rng.uniform(0, period)) % period) / period * rng.uniform(0, 6)
        slow = smoothed(rng.standard_normal(self.size), rng.uniform(4, 16) * 60 * self.minute)
        slow *= rng.uniform(0.3, 2.5) / max(slow.std(), 1e-9)
        used = (
            rng.uniform(18, 60)
            + saw
            + slow
            + self.seasonal * rng.uniform(0, 9) * smoothed(self.demand, 20 * self.minute)
        )
        used += rng.normal(0, rng.uniform(0.03, 0.3), self.size)
        for first, length in self.reboots:  # caches are empty after a reboot and fill again
            since = np.arange(self.size) - first - length
            dropped, hours = rng.uniform(3, 12), rng.uniform(1, 6)
            used -= np.where(since >= 0, dropped * np.exp(-np.maximum(since, 0) / (hours * 60 * self.minute)), 0)
        return np.asarray(np.clip(used, 3, 97), np.float64)
