"""anynpu watch: agents that measure machines, a collector that watches them, traces that are replayed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from anynpu.cli.command import Group, flag_of
from anynpu.cli.flags import require_packages
from anynpu.cli.table import print_table
from anynpu.cli.verb import Common, flag, verb
from anynpu.cli.watch_replay import LIMIT, MODEL_HELP, RATE, RATE_HELP, embedder, replay, simulate
from anynpu.errors import ConfigError, on_one_line
from anynpu.files import check_free, write_whole

if TYPE_CHECKING:
    from anynpu.apps.watch.alerts import Alert
    from anynpu.apps.watch.postman import Postman
    from anynpu.apps.watch.sinks import Sink
    from anynpu.apps.watch.store import SampleStore

PORT, INTERVAL_S = 8620, 30.0
INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class UnitFlags(Common):
    """Who may send, and a unit to write instead of running."""

    token_file: Path | None = flag("File with the token of the fleet.", None)
    systemd: str | None = flag("Write a hardened unit with these flags, and stop; - prints.", None, metavar="FILE")
    overwrite: bool = flag("Replace the written file if it exists.", False)

    def write_unit(self, verb: str) -> int:
        """Writes a systemd unit that makes this call."""
        from anynpu.apps.watch.units import unit

        program = Path(shutil.which("anynpu") or sys.argv[0]).absolute()
        ctx, words = click.get_current_context(), []
        for param in ctx.command.params:
            name = param.name or ""
            source = ctx.get_parameter_source(name)
            if name in ("systemd", "overwrite", "token_file") or source is None or source.name != "COMMANDLINE":
                continue
            value = ctx.params[name]
            if isinstance(value, bool):
                words.append(flag_of(param))
            else:
                for each in value if isinstance(value, tuple) else (value,):
                    words += [flag_of(param), str(each.absolute()) if isinstance(each, Path) else str(each)]
        text = unit(verb, program, words, self.token_file.absolute() if self.token_file else None)
        if self.systemd in (None, "-"):
            click.echo(text, nl=False)
            return 0
        path = Path(self.systemd)
        check_free(path, self.overwrite, flag="--systemd")
        write_whole(path, text)
        click.echo(f"wrote {path}; install it: sudo cp {path} /etc/systemd/system/", err=True)
        return 0


@dataclass(frozen=True, kw_only=True)
class AgentFlags(UnitFlags):
    """What is measured here, how often, and where it goes."""

    collector: str | None = flag("Where samples go, such as http://collector:8620.", None, metavar="URL")
    name: str = flag("Name of this machine; its host name by default.", "", metavar="NAME")
    interval: float = flag("", INTERVAL_S, metavar="SECONDS", minimum=0.1, maximum=3600, shown=True)
    spool: Path | None = flag("Where samples wait while the collector is away.", None)
    spool_size: int = flag("", 64, metavar="MIB", minimum=1, maximum=65_536, shown=True)
    once: bool = flag("Take one sample, send what waits, and stop; status 1 if it is not taken.", False)
    show: bool = flag("Print one sample instead of sending it.", False)


@dataclass(frozen=True, kw_only=True)
class Collect(UnitFlags):
    """Where samples come in, what looks at them, and where alerts go."""

    store_: Path | None = flag("File of samples and alerts; created if it does not exist.", None)
    host: str = flag("Address to listen on.", "127.0.0.1", shown=True)
    port: int = flag("0 takes a free one.", PORT, minimum=0, maximum=65_535, shown=True)
    false_alarms: float = flag(RATE_HELP, RATE, minimum=0.01, maximum=100, metavar="RATE", shown=True)
    interval: float = flag(
        "How often agents send.", INTERVAL_S, metavar="SECONDS", minimum=0.1, maximum=3600, shown=True
    )
    keep: float = flag("Older samples are dropped.", 35.0, metavar="DAYS", minimum=1, maximum=3650, shown=True)
    hold_off: float = flag(
        "What goes wrong on a host within this time is one alert.",
        60.0,
        metavar="MINUTES",
        minimum=0,
        maximum=1440,
        shown=True,
    )
    webhook: tuple[str, ...] = flag("Post alerts as JSON. Repeat for more.", (), metavar="URL")
    alertmanager: str = flag("Send alerts to Prometheus' Alertmanager, such as http://am:9093.", "", metavar="URL")
    syslog: str = flag("Send alerts to syslog: /dev/log, or HOST:PORT (UDP).", "", metavar="ADDRESS")
    method: Literal["robust", "seed"] = flag(
        "What looks at samples: baselines, or embeddings of text lines.", "robust", shown=True
    )
    model: Path | None = flag(MODEL_HELP, None)
    limit: float = flag(
        "Mean cosine of --method seed below which there is an alert.", LIMIT, minimum=0, maximum=1, shown=True
    )
    vectors: str = flag("Vector store of --method seed: a folder, or a Qdrant server's URL.", "", metavar="PLACE")


@click.group(cls=Group)
def watch() -> None:
    """Watch a fleet: an agent on every machine, one collector that knows what is normal for each.

    \b
    anynpu watch detect --token-file token --host 0.0.0.0
    anynpu watch agent --collector http://collector:8620 --token-file token
    anynpu watch replay trace.csv
    """


watch.add_command(replay)
watch.add_command(simulate)


def state_dir() -> Path:
    """Returns where this user's programs keep what they must not lose."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "anynpu"


def read_token(path: Path | None) -> str:
    """Returns the token in a file, or an empty one where none is named."""
    if path is None:
        return os.environ.get("ANYNPU_WATCH_TOKEN", "").strip()
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: cannot be read ({getattr(error, 'strerror', 'not text')})") from None
    if len(token) < 8 or "\n" in token:
        raise ConfigError(f"--token-file {path}: one token of at least 8 characters was expected")
    return token


@verb(AgentFlags, group=watch)
def agent(asked: AgentFlags) -> int:
    """Measure this machine and send a sample to the collector every 30 seconds.

    CPU, memory, swap, load, temperatures, disks, network, and the NPU's utilisation and temperature where sysfs has
    them. A sample is written to the spool first and leaves it when the collector has acknowledged it: nothing is lost
    while the collector is away, up to the size of the spool. Needs no privileges.

    \b
    anynpu watch agent --collector http://collector:8620 --token-file /etc/anynpu/token
    anynpu watch agent --show
    anynpu watch agent --collector http://collector:8620 --systemd anynpu-watch.service
    """
    from anynpu.apps.watch.agent import Agent, AgentSettings
    from anynpu.apps.watch.sensors import Sensors
    from anynpu.apps.watch.spool import Spool

    if asked.show:
        asked.refuse_unused("--show sends nothing", "collector", "once", "spool", "systemd")
        import time

        from anynpu.apps.watch.sensors import Sensors

        sensors = Sensors()
        sensors.read()
        time.sleep(1.0)
        metrics = sensors.read()
        if asked.json:
            click.echo(json.dumps({"schema_version": 1, "kind": "watch-sample", "metrics": metrics}))
        else:
            print_table([{"metric": name, "value": f"{value:.6g}"} for name, value in sorted(metrics.items())])
        return 0
    if asked.collector is None:
        raise ConfigError("--collector is missing", "such as http://collector:8620; --show only prints a sample")
    name = asked.name or socket.gethostname()
    settings = AgentSettings(asked.collector, name, read_token(asked.token_file), asked.interval)
    if asked.systemd is not None:
        return asked.write_unit("agent")
    asked.refuse_unused("no file is written", "overwrite")
    spool = Spool(asked.spool or state_dir() / "watch-spool", asked.spool_size << 20)
    runner = Agent(settings, spool, Sensors().read, _say(asked.quiet))
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    runner.run(stopped.wait, asked.once)
    if asked.once:
        click.echo(f"{runner.sent} samples sent, {len(spool)} wait", err=True)
        return 0 if runner.sent and not len(spool) else 1
    return 0


def _say(quiet: bool) -> Callable[[str], None]:
    def say(text: str) -> None:
        if not quiet:
            click.echo(on_one_line(f"anynpu: {text}"), err=True)

    return say


@verb(Collect, group=watch)
def detect(asked: Collect) -> int:
    """Collect the samples of a fleet, report what is not normal, and show it on a page.

    A sample is acknowledged once it is committed and synced. Every metric of every host has a baseline of its own
    (median and quantiles of four weeks, by the hour of the week); thresholds are conformal, for the requested
    false-alarm rate. Alerts go to stdout and wherever the flags say; the page at / shows hosts, time lines and causes.
    The first alarms are possible after four days, good ones after three weeks.

    \b
    anynpu watch detect
    anynpu watch detect --host 0.0.0.0 --token-file token --alertmanager http://am:9093
    anynpu watch detect --method seed --model minilm/cpu --vectors ~/watch.vectors
    """
    require_packages("watch")
    token = read_token(asked.token_file)
    if asked.systemd is not None:
        return asked.write_unit("detect")
    asked.refuse_unused("no file is written", "overwrite")
    if asked.method != "seed":
        asked.refuse_unused("only --method seed has a model", "model", "limit", "vectors")
    elif asked.model is None:
        raise ConfigError("--method seed needs --model", "the artifact of a text model, such as minilm/cpu")
    return _detect(asked, token)


def _detect(asked: Collect, token: str) -> int:
    from anynpu.apps.watch.alerts import Alerts
    from anynpu.apps.watch.detector import Detector
    from anynpu.apps.watch.hub import BODY_BYTES, Hub
    from anynpu.apps.watch.registry import Registry
    from anynpu.apps.watch.store import SampleStore
    from anynpu.apps.watch.watcher import Watcher
    from anynpu.apps.web.app import Policy
    from anynpu.apps.web.limits import Limits
    from anynpu.apps.web.server import Life, bind, fit_files, is_loopback, run, url_of

    say, path = _say(asked.quiet), asked.store_ or state_dir() / "watch.db"
    with ExitStack() as stack:
        store = SampleStore(path)
        stack.callback(store.close)
        postmen = _postmen(asked, store, say, stack)
        detector = Detector(Registry(), asked.false_alarms, asked.interval)
        if asked.method == "seed":
            detector = stack.enter_context(_seed_detector(asked))
        listener = stack.enter_context(bind(asked.host, asked.port))
        if not is_loopback(listener) and not token:
            say(f"warning: {url_of(listener)}: whoever reaches it can send samples; give --token-file")
        counted: list[Hub] = []

        def tell(alert: Alert) -> None:
            counted[0].figures.alerts.add(alert.causes[0].kind, alert.state)
            for postman in postmen:
                postman.wake.set()

        alerts = Alerts(store, tell, asked.hold_off * 60, [postman.sink.name for postman in postmen])
        learnt = path.with_suffix(f".{asked.method}.npz")
        hub = Hub(store, Watcher(store, alerts, say, learnt, detector, asked.keep), alerts, say)
        counted.append(hub)
        app = hub.app(Policy.of([token] if token else []), fit_files(Limits(body_bytes=BODY_BYTES, body_s=15)))

        def ready() -> None:
            if asked.json:
                click.echo(json.dumps({"schema_version": 1, "kind": "watch", "ready": True, "url": url_of(listener)}))
            else:
                click.echo(f"ready: {url_of(listener)}")
            sys.stdout.flush()
            for postman in postmen:
                postman.start()

        ended_by = run(app, [listener], Life(start=hub.start, ready=ready, close=hub.close))
    return INTERRUPTED if ended_by == signal.SIGINT else 0


def _postmen(asked: Collect, store: SampleStore, say: Callable[[str], None], stack: ExitStack) -> list[Postman]:
    from anynpu.apps.watch.alerts import read_alert
    from anynpu.apps.watch.postman import Postman
    from anynpu.apps.watch.sinks import Alertmanager, LineSink, Syslog, Webhook, checked_url

    def write(text: str) -> None:
        click.echo(text)
        sys.stdout.flush()

    sinks: list[Sink] = [LineSink(write, asked.json)]
    sinks += [Webhook(checked_url(url, "--webhook")) for url in dict.fromkeys(asked.webhook)]
    if asked.alertmanager:
        open_alerts = [read_alert(body) for body, *_ in store.alerts(10_000, open_only=True)]
        firing = {alert.id: alert for alert in open_alerts if not alert.silent}
        sinks.append(Alertmanager(checked_url(asked.alertmanager, "--alertmanager"), firing=firing))
    if asked.syslog:
        sinks.append(Syslog(asked.syslog))
    postmen = [Postman(sink, store, say) for sink in sinks]
    for postman in postmen:
        stack.callback(postman.close)
    return postmen


@contextmanager
def _seed_detector(asked: Collect) -> Iterator[Any]:
    from anynpu.apps.watch.registry import Registry
    from anynpu.apps.watch.seed_method import SeedDetector, collection_spec
    from anynpu.vectors.places import open_store

    place = asked.vectors or str(state_dir() / "watch.vectors")
    assert asked.model is not None  # as `detect` has seen to
    with embedder(asked.model) as (embed, fingerprint, width, normalized), open_store(place) as vectors:
        collection = vectors.create(collection_spec("watch", fingerprint, width, normalized))
        yield SeedDetector(Registry(), embed, collection, asked.interval, asked.limit)
