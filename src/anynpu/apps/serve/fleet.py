"""Every model of one server: loaded, watched, checked by known answers, rebuilt after failures, reloaded, drained."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from anynpu.apps.serve.base import Canary, FleetSettings, Info, ModelSettings, Observer, Silent, Stopped
from anynpu.apps.serve.deployment import Deployment
from anynpu.apps.serve.elsewhere import in_daemon, on_lane
from anynpu.apps.serve.lane import IDLE_WAIT_S, Lane
from anynpu.apps.serve.served import Version
from anynpu.apps.serve.twin import twin_source
from anynpu.apps.serve.version import Opener, Source, describe, load, open_here, read_source
from anynpu.errors import AccuracyError, AnyNpuError, ConfigError, DeviceError
from anynpu.runtime.abilities import EndsJobs, on_hardware
from anynpu.runtime.loose import BuiltSession

TICK_S, LATE_S = 0.1, 0.5
"""A look at the devices that comes so much later says that this process was stopped or starved, not that one hangs."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
OWN_LIMIT_S = 5.0
"""What a session that ends a hanging job itself may take beyond the limit, before its thread is given up."""
SETTLE_FACTOR = 20
"""Warm-up and known answers are this many runs at most, with first runs that take longer."""
SUSPECT_S = 1.0
HELD_TRIES, HELD_S = 3, 5.0
"""What waits keeps waiting for this many tries to open a lost device again, unless they take longer than this."""
CANARY_CASES = 2
_logger = logging.getLogger("anynpu.serve")


def open_fleet(
    models: Sequence[ModelSettings],
    settings: FleetSettings | None = None,
    observer: Observer | None = None,
    opener: Opener = open_here,
) -> Fleet:
    """Returns the models of a server, read and checked but not loaded; what cannot be served together raises."""
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two models are called {name}", "give one of them another name: NAME=ARTIFACT")
    if not models:
        raise ConfigError("there is nothing to serve", "name an artifact's folder")
    return Fleet(models, settings or FleetSettings(), observer or Silent(), opener)


class Fleet:
    """Models that are served together. Everything but the constructor runs in one event loop."""

    def __init__(
        self, models: Sequence[ModelSettings], settings: FleetSettings, observer: Observer, opener: Opener
    ) -> None:
        self.settings, self._observer, self._opener = settings, observer, opener
        self._pool = ThreadPoolExecutor(max(1, settings.decoders), "anynpu-prepare")
        self._lanes: dict[str, Lane] = {}
        self._sources = {model.name: read_source(model) for model in models}
        self._twins = {model.name: twin_source(model, self._sources[model.name]) for model in models}
        self.models: dict[str, Deployment] = {
            name: Deployment(name, source.kind, settings, observer, self._pool, alone=len(self._sources) == 1)
            for name, source in self._sources.items()
        }
        self._locks = {name: asyncio.Lock() for name in self.models}
        self._recoveries: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Known answers that are being run, and models that are being loosened."""
        self._one_loosens = asyncio.Lock()
        self._due: dict[str, float] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self) -> None:
        """Loads, warms up and checks every model; one that cannot be served, by its twin neither, raises."""
        for deployment in self.models.values():
            deployment.attach(asyncio.get_running_loop(), self._lost, self._suspect)
        self._ticking = asyncio.create_task(self._tick())
        await asyncio.gather(*(self._start(name) for name in self.models))

    async def _start(self, name: str) -> None:
        deployment, twin = self.models[name], self._twins[name]
        if twin is not None:
            deployment.use(await self._open(name, twin, twin=True))
        try:
            version = await self._open(name, self._sources[name])
        except (DeviceError, AccuracyError) as error:
            if twin is None:
                raise
            self._recover_later(deployment, None, error)
            return
        deployment.use(version)
        self._passed(deployment, version)
        deployment.change("ready")

    async def _open(self, name: str, source: Source, twin: bool = False, loosen: bool = True) -> Version:
        """Returns a version that is loaded beside whatever runs, and has given its known answers."""
        before = self.models[name].device
        earlier = before.loaded if before is not None and before.info.version == source.digest and not twin else None
        loaded = await asyncio.to_thread(load, source, self._opener, self.settings.run_limit_s)
        # The owner of a device: one for all models on an NPU, one for each model on this computer's CPU
        session, device = loaded.sessions[0], loaded.source.settings.device or ""
        key = f"{session.name} {device}".strip() if on_hardware(session) else f"{session.name}:{name}"
        key += ":twin" if twin else ""
        if key not in self._lanes:
            own = OWN_LIMIT_S if isinstance(session, EndsJobs) else 0.0
            self._lanes[key] = Lane(key, self.settings.run_limit_s + own)
        lane = self._lanes[key]
        try:
            await on_lane(lane, lambda: loaded.settle(earlier), self._settle_limit(lane))
            fallback = self._twins[name]
            path = fallback.artifacts[0].path if fallback is not None and not twin else None
            info = await asyncio.to_thread(describe, name, loaded, self.settings.limits, time.time(), path)
        except BaseException:
            await asyncio.to_thread(loaded.close)
            raise
        version = Version(loaded, lane, info, twin)
        if loosen and any(isinstance(session, BuiltSession) for session in loaded.sessions):
            self.models[name].loosening += 1
            self._begin(self._loosen(self.models[name], version))
        return version

    async def _loosen(self, deployment: Deployment, version: Version) -> None:
        """Finds out whether a model can take any number of rows, and switches to that form of it.

        That takes longer than all else at the first start of an artifact, and so the model already answers as it was
        built.
        """
        try:
            built = [session for session in version.loaded.sessions if isinstance(session, BuiltSession)]
            async with self._one_loosens:
                free = [await in_daemon(session.loosen) for session in built]
            async with self._locks[deployment.name]:
                current = deployment.twin if version.twin else deployment.device
                if any(free) and current is version and (version.twin or deployment.state == "ready"):
                    loose = await self._open(deployment.name, version.loaded.source, version.twin, loosen=False)
                    deployment.use(loose)
                    if not version.twin:
                        self._passed(deployment, loose)
        except (AnyNpuError, OSError) as error:
            _logger.warning("model %s goes on as it was built: %s", deployment.name, error)
        finally:
            deployment.loosening -= 1

    def _settle_limit(self, lane: Lane) -> float:
        return lane.run_limit_s * SETTLE_FACTOR

    async def _tick(self) -> None:
        """Looks after hung devices, passed deadlines and known answers that are due."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            late_s, last = now - last - TICK_S, now
            for lane in self._lanes.values():
                if late_s > LATE_S:
                    lane.forgive(late_s)
                lane.watch(now)
                lane.call(lane.sweep)
            if self.settings.canary_s:
                for name, due in list(self._due.items()):
                    if now >= due and self.models[name].state == "ready":
                        self._due[name] = now + self.settings.canary_s
                        deployment = self.models[name]
                        if deployment.device is not None:
                            self._begin(self._check(deployment, deployment.device, idle=True, most=CANARY_CASES))

    # Known answers

    async def check(self, name: str) -> Canary:
        """Runs the known answers of a model now and returns what they said."""
        deployment = self._named(name)
        if deployment.device is None or deployment.state != "ready":
            return deployment.health().canary
        await self._check(deployment, deployment.device, idle=False, most=None)
        return deployment.health().canary

    def _begin(self, coroutine: Coroutine[None, None, None]) -> None:
        """Runs something until it ends or the fleet is closed."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self, deployment: Deployment, version: Version, idle: bool, most: int | None) -> None:
        loaded = version.loaded

        def judge() -> AnyNpuError | None:
            try:
                loaded.check(most)
            except AccuracyError as error:
                deployment.distrust(version)  # before the owner takes anything else
                return error
            return None

        try:
            drift = await on_lane(version.lane, judge, self._settle_limit(version.lane), idle)
        except AnyNpuError as error:
            if version is deployment.device and loaded is version.loaded:
                deployment.hold(version)
                self._lost(deployment, version, error)
            return
        if drift is None:
            self._passed(deployment, version)
        elif version is deployment.device:
            counts, canary = deployment.counts, deployment.canary
            counts.suspect, counts.since_good = counts.suspect + counts.since_good, 0
            failures = canary.failures + 1
            deployment.note_canary(
                replace(canary, runs=canary.runs + 1, failures=failures, ok=False, reason=drift.message)
            )
            self._recover_later(deployment, version, drift)

    def _passed(self, deployment: Deployment, version: Version) -> None:
        deployment.counts.since_good = 0
        judge, canary = version.loaded.judges[0], deployment.canary
        cases = version.loaded.cases()
        deployment.note_canary(
            replace(canary, source=judge.source, cases=cases, runs=canary.runs + 1, ok=True, reason="")
        )
        # Before the period is over: the check may wait for idle time and for a batch, and is to be done by then.
        period_s, run_s = self.settings.canary_s, sum(version.loaded.program.run_s)
        ahead_s = IDLE_WAIT_S + 2 * TICK_S + (CANARY_CASES + 2) * run_s
        self._due[deployment.name] = time.monotonic() + max(period_s / 2, period_s - ahead_s)

    def _suspect(self, deployment: Deployment) -> None:
        """An answer made no sense: the known answers are run soon."""
        name = deployment.name
        if deployment.state == "ready" and name in self._due:
            self._due[name] = min(self._due[name], time.monotonic() + SUSPECT_S)

    # Failures

    def _lost(self, deployment: Deployment, version: Version, error: AnyNpuError) -> None:
        if version.retired or version.twin:  # not opened again; a twin by the next start of the server
            if deployment.twin is version:
                deployment.twin = None
            deployment.turn_away(version, DeviceError(error.message, "run"), refuse=False)
        elif version is deployment.device:
            self._recover_later(deployment, version, error)

    def _recover_later(self, deployment: Deployment, version: Version | None, error: AnyNpuError) -> None:
        running = self._recoveries.get(deployment.name)
        if self._closing or (running is not None and not running.done()):
            return
        deployment.counts.restarts += 1
        self._observer.restarted(deployment.name, error.message)
        drift = isinstance(error, AccuracyError)
        deployment.change("degraded" if drift else "failed", error.message)
        if drift or version is None or deployment.twin is not None:
            deployment.turn_away(version, _refusal_of(error))
        task = asyncio.create_task(self._recover(deployment, version, error))
        self._recoveries[deployment.name] = task

    async def _recover(self, deployment: Deployment, version: Version | None, error: AnyNpuError) -> None:
        """Opens a lost device again until it gives its known answers, with growing pauses."""
        pause_s, tries, held_until = FIRST_PAUSE_S, 0, time.monotonic() + HELD_S
        name = deployment.name
        if isinstance(error, AccuracyError):
            await asyncio.sleep(pause_s)
        while not self._closing:
            try:
                async with self._locks[name]:
                    if version is not deployment.device:  # a reload was quicker
                        return
                    await self._reopen(deployment, version)
                return
            except (AnyNpuError, OSError) as again:
                error = again if isinstance(again, AnyNpuError) else DeviceError(str(again), "open")
            tries += 1
            drift = isinstance(error, AccuracyError)
            deployment.change("degraded" if drift else "failed", error.message)
            if drift or version is None or tries >= HELD_TRIES or time.monotonic() > held_until:
                deployment.turn_away(version, _refusal_of(error))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _reopen(self, deployment: Deployment, version: Version | None) -> None:
        name = deployment.name
        source = await asyncio.to_thread(read_source, self._sources[name].settings)
        if version is None or source.digest != version.info.version:
            fresh = await self._open(name, source)  # the files are others now: another version answers
            deployment.use(fresh)
        else:
            earlier = version.loaded
            asyncio.get_running_loop().run_in_executor(None, earlier.close)  # may hang, and nobody waits for it
            loaded = await asyncio.to_thread(load, version.loaded.source, self._opener, self.settings.run_limit_s)
            try:
                limit_s = self._settle_limit(version.lane)
                await on_lane(version.lane, lambda: loaded.settle(earlier), limit_s)
            except BaseException:
                asyncio.get_running_loop().run_in_executor(None, loaded.close)
                raise
            fresh = version
            deployment.renew(version, loaded)
        self._passed(deployment, fresh)
        deployment.change("ready")

    # Life

    async def reload(self, name: str) -> Info:
        """Loads a model's files again beside the session in use, checks the known answers, then switches."""
        deployment = self._named(name)
        async with self._locks[name]:
            settings = self._sources[name].settings
            source = await asyncio.to_thread(read_source, settings)
            if source.kind != deployment.kind:
                raise ConfigError(
                    f"{settings.paths[0]}: is of kind {source.kind} now, {name} is served as {deployment.kind}",
                    "start the server anew",
                )
            version = await self._open(name, source)
            self._sources[name] = source
            deployment.use(version)
            self._passed(deployment, version)
            deployment.change("ready")
            deployment.counts.reloads += 1
            self._observer.reloaded(name, version.info.version)
            return version.info

    def _named(self, name: str) -> Deployment:
        if name not in self.models:
            raise ConfigError(f"there is no model {name}", "its models: " + ", ".join(self.models))
        return self.models[name]

    async def drain(self) -> None:
        """Takes no more requests and returns once every accepted one is answered."""
        for deployment in self.models.values():
            deployment.draining = True
        for deployment in self.models.values():
            await deployment.emptied.wait()

    def close(self) -> None:
        """Gives every device back; what still waits gets `Stopped`."""
        self._closing = True
        for task in (self._ticking, *self._recoveries.values(), *self._tasks):
            if task is not None:
                task.cancel()
        for deployment in self.models.values():
            deployment.stop(Stopped("the server is shutting down"))
        for lane in self._lanes.values():
            lane.close()
        for deployment in self.models.values():
            for version in (deployment.device, deployment.twin):
                if version is not None:
                    version.lane.join()
                    with suppress(AnyNpuError, OSError):
                        version.loaded.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _refusal_of(error: AnyNpuError) -> DeviceError:
    if isinstance(error, AccuracyError):
        return DeviceError(f"the device gives wrong answers: {error.message}", "canary", hint="try again later")
    return DeviceError(f"the device is being restarted: {error.message}", "open", hint="try again later")
