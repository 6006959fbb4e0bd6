"""anynpu watch: agents that measure machines, a collector that watches them, traces that are replayed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anynpu.cli import flags
from anynpu.cli.command import Group, refuse_unused
from anynpu.cli.table import print_table
from anynpu.errors import ConfigError, ToolMissing, on_one_line
from anynpu.files import check_free, write_whole

if TYPE_CHECKING:
    from anynpu.apps.watch.alerts import Alert
    from anynpu.apps.watch.postman import Postman
    from anynpu.apps.watch.replay import Alarm, FaultScore, Score
    from anynpu.apps.watch.seed_method import Embed
    from anynpu.apps.watch.sinks import Sink
    from anynpu.apps.watch.store import SampleStore
    from anynpu.apps.watch.trace import Trace

PORT = 8620
INTERRUPTED = 130
PACKAGES = ("httptools", "orjson", "uvloop")
SYSTEMD = click.option("--systemd", metavar="FILE", help="Write a hardened unit with these flags, and stop; - prints.")
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace the file that is written if it is there.")
TOKEN_FILE = click.option("--token-file", type=click.Path(path_type=Path), help="File with the token of the fleet.")
RATE = click.option(
    "--false-alarms",
    type=click.FloatRange(0.01, 100),
    default=0.5,
    show_default=True,
    metavar="RATE",
    help="False alarms per host and week that the thresholds aim at.",
)


@click.group(cls=Group)
def watch() -> None:
    """Watch a fleet: an agent on every machine, one collector that knows what is normal for each.

    \b
    anynpu watch detect --token-file token --host 0.0.0.0
    anynpu watch agent --collector http://collector:8620 --token-file token
    anynpu watch replay trace.csv
    """


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


def _write_unit(verb: str, file: str, overwrite: bool, arguments: list[str], token_file: Path | None) -> int:
    from anynpu.apps.watch.units import unit

    program = Path(shutil.which("anynpu") or sys.argv[0]).absolute()
    text = unit(verb, program, arguments, token_file.absolute() if token_file else None)
    if file == "-":
        click.echo(text, nl=False)
        return 0
    path = Path(file)
    check_free(path, overwrite, flag="--systemd")
    write_whole(path, text)
    click.echo(f"wrote {path}; install it: sudo cp {path} /etc/systemd/system/", err=True)
    return 0


def _given_flags(ctx: click.Context, leave_out: tuple[str, ...]) -> list[str]:
    """Returns the flags of this call as words, for a unit that makes the same call."""
    words: list[str] = []
    for param in ctx.command.params:
        name = param.name or ""
        source = ctx.get_parameter_source(name)
        if name in leave_out or source is None or source.name != "COMMANDLINE":
            continue
        flag = max(param.opts, key=len)
        value = ctx.params[name]
        if isinstance(value, bool):
            words.append(flag)
        else:
            for each in value if isinstance(value, tuple) else (value,):
                words += [flag, str(each.absolute()) if isinstance(each, Path) else str(each)]
    return words


@watch.command()
@click.option("--collector", metavar="URL", help="Where samples go, such as http://collector:8620.")
@click.option("--name", metavar="NAME", help="What this machine is called; its host name if not said.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=30.0, show_default=True, metavar="SECONDS")
@click.option("--spool", type=click.Path(path_type=Path), help="Where samples wait while the collector is away.")
@click.option("--spool-size", type=click.IntRange(1, 65_536), default=64, show_default=True, metavar="MIB")
@click.option("--once", is_flag=True, help="Take one sample, send what waits, and stop; status 1 if it is not taken.")
@click.option("--show", is_flag=True, help="Print one sample instead of sending it.")
@TOKEN_FILE
@SYSTEMD
@OVERWRITE
@flags.apply(flags.COMMON)
@click.pass_context
def agent(ctx: click.Context, /, **given: Any) -> int:
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

    if given["show"]:
        refuse_unused(ctx, "--show sends nothing", "collector", "once", "spool", "systemd")
        return _show_sample(given)
    if given["collector"] is None:
        raise ConfigError("--collector is missing", "such as http://collector:8620; --show only prints a sample")
    name = {"host": given["name"]} if given["name"] else {}
    settings = AgentSettings(
        given["collector"], token=read_token(given["token_file"]), interval_s=given["interval"], **name
    )
    if given["systemd"] is not None:
        words = _given_flags(ctx, ("systemd", "overwrite", "token_file"))
        return _write_unit("agent", given["systemd"], given["overwrite"], words, given["token_file"])
    refuse_unused(ctx, "no file is written", "overwrite")
    spool = Spool(given["spool"] or state_dir() / "watch-spool", given["spool_size"] << 20)
    runner = Agent(settings, spool, Sensors().read, _say(given["quiet"]))
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    runner.run(stopped.wait, given["once"])
    if given["once"]:
        click.echo(f"{runner.sent} samples sent, {len(spool)} wait", err=True)
        return 0 if runner.sent and not len(spool) else 1
    return 0


def _show_sample(given: dict[str, Any]) -> int:
    import time

    from anynpu.apps.watch.sensors import Sensors

    sensors = Sensors()
    sensors.read()
    time.sleep(1.0)
    metrics = sensors.read()
    if given["format"] == "json":
        click.echo(json.dumps({"schema_version": 1, "kind": "watch-sample", "metrics": metrics}))
    else:
        print_table([{"metric": name, "value": f"{value:.6g}"} for name, value in sorted(metrics.items())])
    return 0


def _say(quiet: bool) -> Callable[[str], None]:
    def say(text: str) -> None:
        if not quiet:
            click.echo(on_one_line(f"anynpu: {text}"), err=True)

    return say


def require_packages() -> None:
    """Raises where the extra `watch` is not installed."""
    import importlib.util

    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolMissing(f"{', '.join(missing)}: not installed", "pip install 'anynpu[watch]'")


@watch.command()
@click.option("--store", type=click.Path(path_type=Path), help="File of samples and alerts; made if it is not there.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="0 takes a free one.")
@TOKEN_FILE
@RATE
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=30.0, show_default=True, metavar="SECONDS",
              help="How often agents send.")  # fmt: skip
@click.option("--keep", type=click.FloatRange(1, 3650), default=35.0, show_default=True, metavar="DAYS",
              help="Older samples are dropped.")  # fmt: skip
@click.option("--hold-off", type=click.FloatRange(0, 1440), default=60.0, show_default=True, metavar="MINUTES",
              help="What goes wrong on a host within this time is one alert.")  # fmt: skip
@click.option("--webhook", multiple=True, metavar="URL", help="Post alerts as JSON. Repeat for more.")
@click.option("--alertmanager", metavar="URL", help="Send alerts to Prometheus' Alertmanager, such as http://am:9093.")
@click.option("--syslog", metavar="ADDRESS", help="Send alerts to syslog: /dev/log, or HOST:PORT (UDP).")
@click.option("--method", type=click.Choice(["robust", "seed"]), default="robust", show_default=True,
              help="What looks at samples: baselines, or embeddings of text lines.")  # fmt: skip
@click.option("--model", type=click.Path(path_type=Path), help="Text model of --method seed: an artifact.")
@click.option("--limit", type=click.FloatRange(0, 1), default=0.97, show_default=True,
              help="Mean cosine of --method seed below which there is an alert.")  # fmt: skip
@click.option("--vectors", metavar="PLACE", help="Vector store of --method seed: a folder, or a Qdrant server's URL.")
@SYSTEMD
@OVERWRITE
@flags.apply(flags.COMMON)
@click.pass_context
def detect(ctx: click.Context, /, **given: Any) -> int:
    """Collect the samples of a fleet, say what is not normal, and show it on a page.

    A sample is acknowledged once it is committed and synced. Every metric of every host has a baseline of its own
    (median and quantiles of four weeks, by the hour of the week); thresholds are conformal, for the false-alarm rate
    that is asked for. Alerts go to stdout and wherever the flags say; the page at / shows hosts, time lines and causes.
    The first alarms are possible after four days, good ones after three weeks.

    \b
    anynpu watch detect
    anynpu watch detect --host 0.0.0.0 --token-file token --alertmanager http://am:9093
    anynpu watch detect --method seed --model minilm/cpu --vectors ~/watch.vectors
    """
    require_packages()
    token = read_token(given["token_file"])
    if given["systemd"] is not None:
        words = _given_flags(ctx, ("systemd", "overwrite", "token_file"))
        return _write_unit("detect", given["systemd"], given["overwrite"], words, given["token_file"])
    refuse_unused(ctx, "no file is written", "overwrite")
    if given["method"] != "seed":
        refuse_unused(ctx, "only --method seed has a model", "model", "limit", "vectors")
    elif given["model"] is None:
        raise ConfigError("--method seed needs --model", "the artifact of a text model, such as minilm/cpu")
    return _detect(given, token)


def _detect(given: dict[str, Any], token: str) -> int:
    from anynpu.apps.watch.alerts import Alerts
    from anynpu.apps.watch.detector import Detector
    from anynpu.apps.watch.hub import BODY_BYTES, Hub
    from anynpu.apps.watch.registry import Registry
    from anynpu.apps.watch.store import SampleStore
    from anynpu.apps.watch.watcher import Watcher
    from anynpu.apps.web.app import Policy
    from anynpu.apps.web.limits import Limits
    from anynpu.apps.web.server import Life, bind, fit_files, is_loopback, run, url_of

    say, path = _say(given["quiet"]), given["store"] or state_dir() / "watch.db"
    with ExitStack() as stack:
        store = SampleStore(path)
        stack.callback(store.close)
        postmen = _postmen(given, store, say, stack)
        detector = Detector(Registry(), given["false_alarms"], given["interval"])
        if given["method"] == "seed":
            detector = stack.enter_context(_seed_detector(given))
        listener = stack.enter_context(bind(given["host"], given["port"]))
        if not is_loopback(listener) and not token:
            say(f"warning: {url_of(listener)}: whoever reaches it can send samples; give --token-file")
        counted: list[Hub] = []

        def tell(alert: Alert) -> None:
            counted[0].figures.alerts.add(alert.causes[0].kind, alert.state)
            for postman in postmen:
                postman.wake.set()

        alerts = Alerts(store, tell, given["hold_off"] * 60, [postman.sink.name for postman in postmen])
        learnt = path.with_suffix(f".{given['method']}.npz")
        hub = Hub(store, Watcher(store, alerts, say, learnt, detector, given["keep"]), alerts, say)
        counted.append(hub)
        app = hub.app(Policy.of([token] if token else []), fit_files(Limits(body_bytes=BODY_BYTES, body_s=15)))

        def ready() -> None:
            if given["format"] == "json":
                click.echo(json.dumps({"schema_version": 1, "kind": "watch", "ready": True, "url": url_of(listener)}))
            else:
                click.echo(f"ready: {url_of(listener)}")
            sys.stdout.flush()
            for postman in postmen:
                postman.start()

        ended_by = run(app, [listener], Life(start=hub.start, ready=ready, close=hub.close))
    return INTERRUPTED if ended_by == signal.SIGINT else 0


def _postmen(given: dict[str, Any], store: SampleStore, say: Callable[[str], None], stack: ExitStack) -> list[Postman]:
    from anynpu.apps.watch.alerts import read_alert
    from anynpu.apps.watch.postman import Postman
    from anynpu.apps.watch.sinks import Alertmanager, LineSink, Syslog, Webhook, checked_url

    def write(text: str) -> None:
        click.echo(text)
        sys.stdout.flush()

    sinks: list[Sink] = [LineSink(write, given["format"] == "json")]
    sinks += [Webhook(checked_url(url, "--webhook")) for url in dict.fromkeys(given["webhook"])]
    if given["alertmanager"]:
        open_alerts = [read_alert(body) for body, *_ in store.alerts(10_000, open_only=True)]
        firing = {alert.id: alert for alert in open_alerts if not alert.silent}
        sinks.append(Alertmanager(checked_url(given["alertmanager"], "--alertmanager"), firing=firing))
    if given["syslog"]:
        sinks.append(Syslog(given["syslog"]))
    postmen = [Postman(sink, store, say) for sink in sinks]
    for postman in postmen:
        stack.callback(postman.close)
    return postmen


@contextmanager
def _embedder(model: Path) -> Iterator[tuple[Embed, str, int, bool]]:
    """Gives a function from texts to vectors, the fingerprint of its model, and the form of its vectors."""
    from anynpu.cli import task
    from anynpu.cli.search_index import OPENED
    from anynpu.runtime.base import open_artifact
    from anynpu.tasks.embed import TextTower

    with task.opened(model, "embed-text", OPENED) as found:
        tower = TextTower(found)
        fingerprint = open_artifact(model).manifest.fingerprint or str(model)
        yield tower.embed, fingerprint, tower.width, tower.space.normalized


@contextmanager
def _seed_detector(given: dict[str, Any]) -> Iterator[Any]:
    from anynpu.apps.watch.registry import Registry
    from anynpu.apps.watch.seed_method import SeedDetector, collection_spec
    from anynpu.vectors.places import open_store

    place = given["vectors"] or str(state_dir() / "watch.vectors")
    with _embedder(given["model"]) as (embed, fingerprint, width, normalized), open_store(place) as vectors:
        collection = vectors.create(collection_spec("watch", fingerprint, width, normalized))
        yield SeedDetector(Registry(), embed, collection, given["interval"], given["limit"])


@watch.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--labels", type=click.Path(path_type=Path), help="Labelled faults; trace.labels.csv if not said.")
@click.option("--method", type=click.Choice(["robust", "sigma", "seed"]), default="robust", show_default=True)
@RATE
@click.option("--sigmas", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Of --method sigma.")
@click.option("--learn", type=click.FloatRange(0), metavar="DAYS", help="Time at the start that is not scored; four "
              "weeks, or half of a shorter trace, if not said.")  # fmt: skip
@click.option("--model", type=click.Path(path_type=Path), help="Text model of --method seed: an artifact.")
@click.option("--limit", type=click.FloatRange(0, 1), default=0.97, show_default=True,
              help="Mean cosine of --method seed below which there is an alarm.")  # fmt: skip
@flags.apply(flags.COMMON)
@click.pass_context
def replay(ctx: click.Context, /, trace: Path, labels: Path | None, **given: Any) -> int:
    """Replay a trace and score a method by its labels: recall, false alarms per host-week, delay; with intervals.

    A trace is a CSV file with the columns time, host, received (optional) and one for every metric; its labels are in
    a second one with the columns host, fault, metric, start, end. Without labels the alarms are printed.

    \b
    anynpu watch simulate --hosts 4 -o trace.csv
    anynpu watch replay trace.csv
    anynpu watch replay trace.csv --method sigma
    """
    from anynpu.apps.watch import methods
    from anynpu.apps.watch.replay import score
    from anynpu.apps.watch.trace import read_trace

    if given["method"] != "seed":
        refuse_unused(ctx, "only --method seed has a model", "model", "limit")
    elif given["model"] is None:
        raise ConfigError("--method seed needs --model", "the artifact of a text model, such as minilm/cpu")
    found = read_trace(trace, labels)
    start = min(float(host.received_s[0]) for host in found.hosts)
    from_s = methods.learning_end(found) if given["learn"] is None else start + given["learn"] * 86_400
    alarms = _alarms(found, from_s, given)
    if not found.labels:
        return _print_alarms([alarm for alarm in alarms if alarm.time_s >= from_s], given["format"])
    result = score(found, alarms, from_s)
    if given["format"] == "json":
        record = {"schema_version": 1, "kind": "watch-replay", "method": given["method"], **asdict(result)}
        click.echo(json.dumps(record))
    else:
        _print_score(result)
    return 0


def _alarms(trace: Trace, from_s: float, given: dict[str, Any]) -> list[Alarm]:
    from anynpu.apps.watch import methods

    def progress(done: float) -> None:
        if not given["quiet"] and sys.stderr.isatty():
            click.echo(f"\r{100 * done:5.1f} %", err=True, nl=False)

    if given["method"] == "sigma":
        return methods.three_sigma(trace, from_s, given["sigmas"])
    if given["method"] == "robust":
        return methods.robust(trace, given["false_alarms"], progress)
    from anynpu.apps.watch.registry import Registry
    from anynpu.apps.watch.seed_method import SeedDetector

    with _embedder(given["model"]) as (embed, *_):
        detector = SeedDetector(Registry(), embed, None, trace.interval_s, given["limit"])
        return methods.detected(trace, detector, progress)


def _print_alarms(alarms: list[Alarm], form: str) -> int:
    from anynpu.apps.watch.sinks import moment

    if form == "json":
        click.echo(json.dumps({"schema_version": 1, "kind": "watch-alarms", "alarms": [asdict(a) for a in alarms]}))
        return 0
    print_table(
        [{"time": moment(a.time_s), "host": on_one_line(a.host), "metric": a.metric, "test": a.test} for a in alarms]
    )
    click.echo(f"{len(alarms)} alarms; there are no labels to score them by", err=True)
    return 0


def _print_score(result: Score) -> None:
    print_table([_fault_row(fault) for fault in result.faults])
    recall, rate = result.recall, result.false_alarms_a_host_week
    click.echo(f"recall {recall.value:.3f} [{recall.low:.3f}, {recall.high:.3f}]")
    click.echo(
        f"false alarms per host-week {rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}] "
        f"({result.false_alarms} in {result.host_weeks:.1f} host-weeks)"
    )


def _fault_row(fault: FaultScore) -> dict[str, str]:
    from anynpu.apps.watch.explain import duration

    delay = fault.delay_s
    return {
        "fault": fault.fault,
        "found": f"{fault.found} of {fault.count}",
        "recall": f"{fault.recall.value:.2f} [{fault.recall.low:.2f}, {fault.recall.high:.2f}]",
        "delay, median": ""
        if delay is None
        else f"{duration(delay.value)} [{duration(delay.low)}, {duration(delay.high)}]",
        "delay, p90": "" if fault.delay_p90_s is None else duration(fault.delay_p90_s),
    }


@watch.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The trace, a CSV file.")
@click.option("--hosts", type=click.IntRange(1, 1000), default=4, show_default=True)
@click.option("--weeks", type=click.FloatRange(0.1, 26), default=6.0, show_default=True)
@click.option("--clean", type=click.FloatRange(0, 26), default=4.0, show_default=True, help="Weeks without faults.")
@click.option("--interval", type=click.FloatRange(1, 3600), default=60.0, show_default=True, metavar="SECONDS")
@click.option("--seed", type=click.IntRange(0, 1_000_000), default=0, show_default=True)
@OVERWRITE
@flags.apply(flags.COMMON)
def simulate(
    output: Path, hosts: int, weeks: float, clean: float, interval: float, seed: int, overwrite: bool, **_: Any
) -> int:
    """Write a trace of machines that never were, with labelled faults, to try methods on.

    \b
    anynpu watch simulate --hosts 4 --seed 7 -o trace.csv
    """
    from anynpu.testing.traces import csv_of, fleet

    beside = output.with_suffix(".labels.csv")
    for path in (output, beside):
        check_free(path, overwrite)
    trace = fleet(range(seed, seed + hosts), weeks, clean, interval)
    samples, labels = csv_of(trace)
    write_whole(output, samples)
    write_whole(beside, labels)
    click.echo(f"{output}: {hosts} hosts; {beside}: {len(trace.labels)} faults", err=True)
    return 0
