"""anynpu bench: how long an artifact takes, measured where it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from anynpu.api.feed import read_one
from anynpu.api.session import is_board
from anynpu.artifact import Artifact
from anynpu.cli import bench_http, options
from anynpu.cli.bench_http import ArtifactOrUrl, asked_of, measure_server, show_server
from anynpu.cli.bench_text import show, show_board
from anynpu.cli.command import Command, refuse_unused
from anynpu.cli.progress import observer
from anynpu.cli.run import DEVICE, TIMEOUT, open_on
from anynpu.errors import AnyNpuError, ConfigError, DeviceError
from anynpu.files import check_free, write_whole
from anynpu.measure.bench import Sample, board_record, known_sample, time_board
from anynpu.measure.energy import CsvMeter, Meter, find_meter, parse_window
from anynpu.measure.load import MULTI, SCENARIOS, SERVER, SINGLE, Runner, Settings, Tell
from anynpu.measure.outcome import INTERRUPTED, to_record
from anynpu.measure.subject import INFER, PIPELINE, Infer, Pipeline, Read, Subject
from anynpu.measure.together import measure_together
from anynpu.records.parts import as_json, own_version, receipt
from anynpu.runtime import trial
from anynpu.runtime.base import open_artifact, open_session
from anynpu.runtime.versions import versions_of
from anynpu.schema import sealed

BOARD_RUNS, BOARD_WARMUP, MAX_TIME_S = 10, 2, 60.0
HOST_ONLY = ("min_time", "min_count", "max_time", "preprocess", "energy_csv", "energy_window", "energy_idle")
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")

LOAD = (
    click.option(
        "--scenario", type=click.Choice(SCENARIOS), default=SINGLE, show_default=True, help="How queries come."
    ),
    click.option(
        "--scope",
        type=click.Choice([INFER, PIPELINE]),
        default=INFER,
        show_default=True,
        help="infer: stored values to stored values; pipeline: from real input to real result.",
    ),
    click.option("-n", "--runs", type=click.IntRange(1, 100000), help="Exactly so many runs; boards: 10."),
    click.option(
        "--warmup", type=click.IntRange(0, 100000), help="Exactly so many runs before; until stable if not said."
    ),
    click.option("--min-time", type=float, default=3.0, show_default=True, help="Least seconds to measure."),
    click.option("--min-count", type=click.IntRange(1, 1000000), default=100, show_default=True, help="Least runs."),
    click.option("--max-time", type=float, help="Most seconds to measure; 60, or --min-time where that is more."),
    click.option(
        "--streams",
        type=click.IntRange(1, 10000),
        default=8,
        show_default=True,
        help="Samples a query of multi-stream.",
    ),
    click.option("--qps", type=float, help="Queries a second that arrive in the scenario server."),
    click.option(
        "--bound", type=float, metavar="MS", help="Latency that the percentile must keep (server); else status 1."
    ),
    click.option(
        "--percentile", type=float, default=99.0, show_default=True, help="The percentile that --bound is for."
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the arrivals (server)."),
)
MORE = (
    click.option(
        "-P",
        "--preprocess",
        multiple=True,
        metavar="NAME=VALUE",
        help="How an image becomes the input; else as its card says.",
    ),
    click.option("--post", metavar="MODULE:FUNCTION", help="Called with the real outputs at the end of the pipeline."),
    click.option(
        "--with",
        "others",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Another artifact at the same time. Repeat for more.",
    ),
    click.option(
        "--body",
        type=click.Path(path_type=Path),
        help="JSON file to send to a server instead of texts.",
    ),
    click.option(
        "--connections",
        type=click.IntRange(1, 1000),
        default=1,
        show_default=True,
        help="Connections to a server.",
    ),
    click.option(
        "--energy-csv",
        type=click.Path(path_type=Path),
        help="What an external meter writes: time and watts, or volts and amps.",
    ),
    click.option(
        "--energy-window", metavar="START,END", help="The part of the file that is the measurement, in its own time."
    ),
    click.option("--energy-idle", metavar="START,END", help="The part of the file that is the machine at rest."),
    click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the record to this JSON file too."),
    options.OVERWRITE,
)


@click.command(cls=Command)
@click.argument("artifact", metavar="ARTIFACT|URL", type=ArtifactOrUrl())
@DEVICE
@click.option(
    "-i",
    "--input",
    "inputs",
    metavar="FILE",
    help="x.npy or x.npz, an image with --scope pipeline; else a known answer. To a server also texts.txt, x.json.",
)
@options.apply(LOAD, MORE, bench_http.OPTIONS)
@TIMEOUT
@options.apply(options.COMMON)
@click.pass_context
def bench(ctx: click.Context, /, artifact: Path | str, **given: Any) -> int:
    """Measure how long an artifact or a server takes; every run's output is compared with the first.

    Cold start is told apart, warm-up lasts until it is stable, and runs go on until both --min-time and --min-count are
    met. Percentiles are told where the samples support them. What is measured before a device dies or Ctrl-C is kept.
    Firmware measures itself, stage by stage. An emulator counts instructions, which say nothing of time. A server is
    measured over HTTP: with --qps requests arrive on their own (open loop), else each connection waits for its answer.

    \b
    anynpu bench out/cpu
    anynpu bench out/cpu --scenario server --qps 50 --bound 20
    anynpu bench out/cpu --with other/cpu -o together.json
    anynpu bench http://127.0.0.1:8080 --qps 50 --bound 20
    anynpu bench http://127.0.0.1:8080/detect -i pictures --limit
    anynpu bench out/cortex-m55 --on qemu -n 5
    """
    if (output := given["output"]) is not None:
        folder = artifact if isinstance(artifact, Path) else None
        check_free(output, given["overwrite"], (folder, given["inputs"], given["body"], given["energy_csv"]))
    else:
        refuse_unused(ctx, "there is no -o", "overwrite")
    if isinstance(artifact, str):
        told, record, error = _server(ctx, artifact, given)
    else:
        refuse_unused(ctx, "it is for the URL of a server", *bench_http.ONLY_SERVERS)
        _refuse_without_use(ctx, given)
        told, record, error = _measure(artifact, given)
    record = sealed({"schema_version": 2, "kind": "bench", "anynpu": own_version(), **told, **record})
    if output is not None:
        write_whole(output, as_json(record))
    if given["format"] == "json":
        click.echo(as_json(record), nl=False)
    else:
        (show_board if record.get("board") else show_server if record.get("http") else show)(record)
    return _status(record, error)


def _server(ctx: click.Context, url: str, given: Mapping[str, Any]) -> Measured:
    """Measures a server over HTTP; --qps makes it an open loop."""
    asked = asked_of(ctx, url, given)
    if asked.limit and given["qps"] is not None:
        raise ConfigError("--limit finds the rate itself: --qps has no place beside it")
    if asked.limit:
        given = {**given, "qps": 1.0}  # every rate that is tried takes its place
    scenario = SERVER if given["qps"] is not None else given["scenario"]
    given = {**given, "scenario": scenario}
    _refuse_without_use(ctx, given)
    return measure_server(asked, _settings(given))


def _refuse_without_use(ctx: click.Context, given: Mapping[str, Any]) -> None:
    """Raises for a flag that this scenario has no use for."""
    if given["scenario"] != SERVER:
        refuse_unused(ctx, f"the scenario is {given['scenario']}", "seed", hint="it is for --scenario server")
    if given["scenario"] != MULTI:
        refuse_unused(ctx, f"the scenario is {given['scenario']}", "streams", hint="it is for --scenario multi-stream")
    if given["bound"] is None:
        refuse_unused(ctx, "there is no --bound", "percentile")
    if given["runs"] is not None:
        refuse_unused(ctx, "-n is an exact number of runs", "min_time", "min_count", "max_time")


Measured = tuple[dict[str, Any], dict[str, Any], BaseException | None]


def _measure(artifact: Path, given: Mapping[str, Any]) -> Measured:
    """Returns what was measured, its record, and what broke the measurement off."""
    subject = open_artifact(artifact)
    told = {"artifact": subject.digest, "path": str(artifact), "fingerprint": subject.manifest.fingerprint}
    if is_board(subject, given["device"]):
        return told, *_board(subject, given)
    refuse_unused(click.get_current_context(), "nothing runs on a board", "timeout")
    settings = _settings(given)
    with observer(given["quiet"]) as progress:
        tell: Tell = lambda stage, seconds: progress.finished("bench", stage, seconds, False)  # noqa: E731
        if given["others"]:
            return told, *_together(subject, artifact, given, settings, tell)
        sample, opener = _opener(subject, given)
        record, error = _alone(opener, settings, _meter(given), tell)
    return told, {"input": sample.source, **record}, error


def _settings(given: Mapping[str, Any]) -> Settings:
    return Settings(
        scenario=given["scenario"],
        min_time_s=given["min_time"],
        min_count=given["min_count"],
        max_time_s=max(MAX_TIME_S, given["min_time"]) if given["max_time"] is None else given["max_time"],
        runs=given["runs"],
        warm_up=given["warmup"],
        streams=given["streams"],
        qps=given["qps"],
        bound_ms=given["bound"],
        percentile=given["percentile"],
        seed=given["seed"],
    )


def _alone(
    opener: Callable[[], Subject], settings: Settings, meter: Meter | None, tell: Tell
) -> tuple[dict[str, Any], BaseException | None]:
    runner = Runner(opener, settings, tell)
    try:
        result = runner.run(meter)
        session = getattr(runner.subject, "session", None)
        placed, versions = receipt(getattr(session, "placement", None)), versions_of(session)
    finally:
        runner.close()
    record = to_record(result, meter) | ({"receipt": placed} if placed else {})
    record |= {"versions": versions} if versions else {}
    return record, result.error or (result.energy_error if isinstance(meter, CsvMeter) else None)


def _meter(given: Mapping[str, Any]) -> Meter | None:
    """Returns the meter that the flags name, or the machine's own."""
    windows = {
        name: parse_window(f"--energy-{name}", text)
        for name in ("window", "idle")
        if (text := given[f"energy_{name}"]) is not None
    }
    if given["energy_csv"] is None:
        if windows:
            raise ConfigError(f"--energy-{next(iter(windows))} needs --energy-csv")
        return find_meter()
    return CsvMeter(given["energy_csv"], windows.get("window"), windows.get("idle"))


def _opener(artifact: Artifact, given: Mapping[str, Any]) -> tuple[Sample, Callable[[], Subject]]:
    """Returns the input and a function that opens what is to be timed."""
    path = Path(given["inputs"]) if given["inputs"] else None
    pipeline = given["scope"] == PIPELINE
    if not pipeline and (given["post"] or given["preprocess"]):
        raise ConfigError("--post and -P belong to --scope pipeline")
    read: Read | None = None
    if path is not None and path.suffix.lower() in IMAGES:
        if not pipeline:
            raise ConfigError(f"{path}: an image is an input of --scope pipeline only", "or give an .npy file")
        sample, read = _image(artifact, path, given)
    elif given["preprocess"]:
        raise ConfigError("-P has no effect without an image", "give one with -i")
    elif path is not None:
        sample = _sample(given["inputs"], artifact)
    else:
        sample = known_sample(artifact)
    trial.require(artifact, given["device"])  # here, not where the cold start is timed
    if not pipeline:
        return sample, lambda: Infer(open_session(artifact, given["device"]), sample.inputs)
    post = _function(given["post"]) if given["post"] else None
    return sample, lambda: Pipeline(open_session(artifact, given["device"]), sample.inputs, read, post)


def _sample(source: str, artifact: Artifact) -> Sample:
    """Returns the input that -i names; what was moved to get there is said."""
    inputs, notes = read_one(source, artifact)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    return Sample(source, inputs)


def _image(artifact: Artifact, path: Path, given: Mapping[str, Any]) -> tuple[Sample, Read]:
    """Returns an image as the only input, and a function that reads it from the disk again."""
    from anynpu.measure import calibrated
    from anynpu.tasks import card
    from anynpu.tasks.images import in_order, load_images

    if len(artifact.manifest.inputs) != 1:
        raise ConfigError(f"{path} is one image, the model has {len(artifact.manifest.inputs)} inputs")
    spec, preprocess = artifact.manifest.inputs[0], options.preprocess(given["preprocess"])
    if preprocess is None and artifact.manifest.task and (stated := card.of(artifact).card.preprocess):
        preprocess = in_order(stated, spec.channels)
    if preprocess is None and (known := calibrated.read(artifact)) is not None:
        preprocess = known.preprocess
    if preprocess is None:
        raise ConfigError(f"{path}: its preprocessing is not stated", "state it with -P size=96x96 -P mean=0.5 ...")

    def read() -> dict[str, Any]:
        return {spec.name: next(iter(load_images([path], spec, preprocess))).reshape(spec.shape)}

    return Sample(str(path), {spec.name: spec.to_stored(read()[spec.name])}), read


def _function(name: str) -> Callable[..., Any]:
    """Returns the function that MODULE:FUNCTION names."""
    module, sign, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if sign and function else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--post {name}: {error}") from error
    if not callable(found):
        raise ConfigError(f"--post {name}: MODULE:FUNCTION was expected")
    return found  # type: ignore[no-any-return]


def _together(
    first: Artifact, path: Path, given: Mapping[str, Any], settings: Settings, tell: Tell
) -> tuple[dict[str, Any], BaseException | None]:
    if given["energy_csv"] is not None:
        raise ConfigError("--energy-csv is for one model: the window of several cannot be parted")
    own = dict(given) | {"inputs": None}
    sample, opener = _opener(first, given)
    openers = [(str(path), opener)]
    for other in given["others"]:
        artifact = open_artifact(other)
        if is_board(artifact, given["device"]):
            raise ConfigError(f"{other}: a board measures itself, one model at a time")
        openers.append((str(other), _opener(artifact, own)[1]))
    record, error = measure_together(openers, settings, tell)
    return {"input": sample.source, **record}, error


def _board(subject: Artifact, given: Mapping[str, Any]) -> tuple[dict[str, Any], BaseException | None]:
    """Lets a board measure itself."""
    asked = {"--scenario": given["scenario"] != SINGLE, "--scope": given["scope"] != INFER, "--with": given["others"]}
    for flag, said in {**asked, "--qps": given["qps"], "--bound": given["bound"], "--post": given["post"]}.items():
        if said:
            raise ConfigError(f"{flag}: a board measures itself, single-stream", "leave it out, or name another --on")
    refuse_unused(click.get_current_context(), "a board measures itself", *HOST_ONLY)
    sample = known_sample(subject)
    if given["inputs"]:
        sample = _sample(given["inputs"], subject)
    warmup = BOARD_WARMUP if given["warmup"] is None else given["warmup"]
    with open_on(subject, given) as session:
        board = session.board
        assert board is not None
        found = time_board(board.session, sample, given["runs"] or BOARD_RUNS, warmup, board.clock)
    return {**board_record(found), "memory": board.memory()}, found.error


def _status(record: Mapping[str, Any], error: BaseException | None) -> int:
    """Says what broke the measurement off, and returns the exit status."""
    if isinstance(error, AnyNpuError):
        click.echo(f"anynpu: {error.message}", err=True)
        if isinstance(error, DeviceError) and error.cause:
            click.echo(f"  likely cause: {error.cause}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        return error.exit_status
    if error is not None:
        click.echo("anynpu: interrupted; the samples before are kept", err=True)
        return INTERRUPTED
    verdict = record.get("verdict")
    if (record.get("http") or {}).get("failed"):
        return 1
    return 1 if verdict is not None and not verdict["met"] else 0
