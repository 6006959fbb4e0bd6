"""anynpu compare: is B better, worse or no different?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from anynpu import schema
from anynpu.api.compare import (
    LEVEL_SHARE,
    MARGIN_PERCENT,
    MIN_SQNR_DB,
    Asked,
    Comparison,
    compare_artifacts,
    same_network,
    sealed_record,
)
from anynpu.cli import compare_http
from anynpu.cli.bench_http import ArtifactOrUrl
from anynpu.cli.command import threshold
from anynpu.cli.compare_http import ServerFlags
from anynpu.cli.flags import read_preprocess
from anynpu.cli.table import print_record, print_table
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.measure.compare import Measured, Rules, record_of
from anynpu.measure.stats import percentile, quantity
from anynpu.records.compare import (
    LETTERS,
    CompareRecord,
    Launches,
    Medians,
    SideInfo,
    SideSummaries,
)
from anynpu.records.shared import Threshold
from anynpu.report.facts import fidelity_rows
from anynpu.seals import check_seal
from anynpu.tasks.images import Preprocess


@dataclass(frozen=True, kw_only=True)
class Level(Common):
    """How sure a verdict must be."""

    level: float = flag("Chance of a false alarm that is accepted.", LEVEL_SHARE, shown=True)


@dataclass(frozen=True, kw_only=True)
class Judging(Level):
    """What counts as a difference, and the ledger that keeps results."""

    margin: str = flag("Smallest change of interest, such as 3%.", f"{MARGIN_PERCENT:g}%", metavar="SHARE", shown=True)
    ledger: Path | None = flag("The ledger's file [ANYNPU_LEDGER].", None, envvar="ANYNPU_LEDGER")

    def rules(self) -> Rules:
        """Returns how a difference is judged, as --level and --margin say."""
        text = self.margin
        try:
            margin = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            raise ConfigError(f"--margin {text}: a share such as 1% was expected") from None
        return Rules(self.level, margin)


@dataclass(frozen=True, kw_only=True)
class Compare(ServerFlags, Judging):
    """A and B, and what of them is compared."""

    reference: Path | str = argument(metavar="A", type=ArtifactOrUrl())
    candidate: Path | str = argument(metavar="B", type=ArtifactOrUrl())
    preprocess: Preprocess | None = flag(
        "How images become inputs.", None, "-P", metavar="NAME=VALUE", read=read_preprocess
    )
    limit: int = flag("Maximum number of samples.", Asked.limit, minimum=1, shown=True)
    metric: str = flag("Metric for labels: top1, mean_top1, ...; by default guessed from their form.", "")
    min_sqnr: float = flag(
        "Minimum SQNR of the outputs; less ends with status 1.", MIN_SQNR_DB, metavar="DB", shown=True
    )
    timed: bool = flag("Compare latencies, measured in turn in fresh processes.", False, "--time")
    device: str | None = flag("What runs B.", None, "--on", metavar="DEVICE")
    different_networks: bool = flag("Continue although the networks differ; the record says so.", False)

    def comparison(self, rules: Rules) -> Asked:
        """Returns what is compared of two artifacts or records."""
        return Asked(
            rules,
            data=self.data,
            preprocess=self.preprocess,
            limit=self.limit,
            metric=self.metric,
            min_sqnr_db=self.min_sqnr,
            timed=self.timed,
            launches=self.launches,
            seconds=self.seconds,
            runs=self.runs,
            on=self.device,
            different_networks=self.different_networks,
        )


@verb(Compare)
def compare(asked: Compare) -> int:
    """Judge B against A: outputs, latency, accuracy; status 1 if B is worse.

    A and B are two artifacts, or two records that `anynpu bench -f json` wrote. With --data their outputs are compared
    (SQNR), and their accuracies where there are labels (McNemar's test for top-1). With --time they run in turn (ABBA),
    each launch in a fresh process: the ratio of medians has a bootstrap interval over launches, and a permutation test
    decides. "No difference" is a verdict too. Different networks (by fingerprint) are refused.

    Two servers (any with OpenAI's embeddings, TEI's, Ollama's or KServe's routes) are measured in turn too: latency,
    answers per second, CPU time and memory of their processes where they run here, and whether their vectors agree.

    \b
    anynpu compare out/float out/tflm --data test.npz
    anynpu compare out/cpu out/tflm --time --launches 10
    anynpu compare before.json after.json --margin 3% -f json
    anynpu compare http://127.0.0.1:8080 http://127.0.0.1:7997 --connections 8
    """
    rules, reference, candidate = asked.rules(), asked.reference, asked.candidate
    gate, failure = gate_of(rules), None
    if isinstance(reference, str) and isinstance(candidate, str):
        asked.refuse_unused("two servers are compared", *compare_http.ONLY_ARTIFACTS)
        record, failure = compare_http.compare_servers((reference, candidate), rules, asked)
    elif isinstance(reference, str) or isinstance(candidate, str):
        raise ConfigError(f"{reference} and {candidate}: one is a server, the other is not", "name two servers")
    else:
        asked.refuse_unused("it is for two servers", *compare_http.ONLY_SERVERS)
        if not asked.data:
            asked.refuse_unused("there is no --data", "preprocess", "limit", "metric", "min_sqnr")
        if not asked.timed:
            asked.refuse_unused("there is no --time", "launches", "seconds", "runs")
        if asked.data:
            gate = (threshold("min_sqnr", asked.min_sqnr, MIN_SQNR_DB, "dB"), *gate)
        record, failure = _artifacts_or_records(reference, candidate, asked.comparison(rules), asked.quiet)
    record = sealed_record(record, gate)
    if asked.json:
        print_record(record)
    else:
        (compare_http.show_servers if record.http else show)(record)
    if failure is not None:
        raise failure
    if asked.ledger is not None and record.http is None and (record.measured or record.accuracy):
        from anynpu.measure.ledger import append, rows_of

        append(asked.ledger, rows_of(schema.to_dict(record), "this comparison"))
    return 1 if Comparison(record).worse else 0


def gate_of(rules: Rules) -> tuple[Threshold, ...]:
    """Returns --level and --margin with their defaults and where they came from."""
    return (
        threshold("level", rules.level, LEVEL_SHARE),
        threshold("margin", 100 * rules.margin, MARGIN_PERCENT, "%"),
    )


def _artifacts_or_records(
    path_a: Path, path_b: Path, asked: Asked, quiet: bool
) -> tuple[CompareRecord, AnyNpuError | None]:
    """Returns the comparison of two artifacts, or of two benches that were recorded, and what broke it off."""

    def progress(done: int, total: int) -> None:
        if not quiet:
            click.echo(f"launch {done} of {total}", err=True)

    if path_a.is_file() != path_b.is_file():
        raise ConfigError(f"{path_a} and {path_b}: one is a record, the other an artifact", "bench the artifact")
    if not path_a.is_file():
        return compare_artifacts(path_a, path_b, asked, progress)
    if asked.data or asked.timed or asked.on:
        raise ConfigError("--data, --time and --on run artifacts; two records were given")
    (a, launches_a, unit_a, note_a), (b, launches_b, unit_b, note_b) = _side(path_a), _side(path_b)
    if unit_a != unit_b:
        raise ConfigError(f"{path_a} counts {unit_a} and {path_b} {unit_b}: nothing to compare")
    notes = same_network(a, b, asked.different_networks) + [note for note in (note_a, note_b) if note]
    measured = Measured(launches_a, launches_b, unit_a, "as recorded", "")
    return record_of(a, b, asked.rules, measured=measured, notes=notes), None


def _side(path: Path) -> tuple[SideInfo, list[list[float]], str, str]:
    """Returns what a bench record is of, its samples, their unit, and a note if it has no seal."""
    from anynpu.measure.ledger import launches_of, with_artifact

    record = schema.read_json(path)
    if not isinstance(record, Mapping) or record.get("kind") != "bench":
        kind = record.get("kind") if isinstance(record, Mapping) else None
        raise ConfigError(f"{path}: not a bench record" + (f" but one of kind {kind}" if kind else ""))
    note = check_seal(record, str(path))
    try:
        launches, unit = launches_of(record)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None
    except (AttributeError, TypeError):
        raise ConfigError(f"{path}: not a whole bench record") from None
    if record.get("complete") is False:
        raise ConfigError(f"{path}: this bench broke off; run it again")
    whole = with_artifact(record) if record.get("path") else record
    texts = {name: str(whole.get(name) or "") for name in ("artifact", "fingerprint", "executed", "chip")}
    return SideInfo(str(path), **texts, tools=whole.get("tools"), options=whole.get("options")), launches, unit, note


def show(record: CompareRecord) -> None:
    """Prints a comparison as text."""
    for letter in LETTERS:
        side = record.side(letter)
        click.echo(f"{letter.upper()}: {side.name}, {side.executed or 'not executed'}")
    if record.outputs:
        print_table(fidelity_rows(record.outputs))
        worst, floor, shortfall = min(each.sqnr_db for each in record.outputs.values()), record.min_sqnr_db, ""
        if floor is not None and worst < floor:  # figures that people compare
            shortfall = f": {worst:.1f} dB is under {floor:g} dB"
        elif record.outputs_shortfall:
            shortfall = f": {record.outputs_shortfall}"
        click.echo(f"outputs: {record.outputs_verdict}{shortfall}")
    if latency := record.measured:
        rows, summaries, samples = (
            [],
            latency.summary or SideSummaries(),
            latency.launches or Launches(),
        )
        medians = latency.medians or Medians()
        sides = (("A", summaries.a, samples.a, medians.a), ("B", summaries.b, samples.b, medians.b))
        for name, summary, launches, median in sides:
            if summary is not None:
                middles = [percentile(launch, 0.5) for launch in launches]
                rows.append(
                    {
                        "side": name,
                        f"median {latency.unit}": "-" if median is None else f"{median:.4g}",
                        "of launches": f"{min(middles):.4g} .. {max(middles):.4g}",
                        "MAD": f"{summary.mad:.2g}",
                        "samples": str(summary.count),
                        "launches": str(len(middles)),
                    }
                )
        print_table(rows)
        if (ratio := latency.ratio) is not None:
            click.echo(
                f"{quantity(latency.unit)}: B / A = {ratio.median:.4g} [{ratio.low:.4g}, {ratio.high:.4g}] "
                f"({100 * (ratio.confidence or 0.0):.4g} %), p = {latency.p_adjusted:.2g}: {latency.verdict}"
                + (" (equal within the margin)" if latency.equivalent else "")
            )
    if record.accuracy:
        accuracy = record.accuracy
        mean, low, high = accuracy.difference
        figures = f"{accuracy.metric}: A {accuracy.a:.4g}, B {accuracy.b:.4g}"
        test = f"p = {accuracy.p_adjusted:.2g} ({accuracy.test}): {accuracy.verdict}"
        click.echo(f"{figures}, B - A = {mean:+.4g} [{low:+.4g}, {high:+.4g}], {test}")
    for note in record.notes:
        click.echo(f"note: {note}")
    if host := record.host:
        machine = f"{host.cpus} CPUs, governor {host.governor or 'unknown'}"
        click.echo(f"host: {machine}, load {host.load} before and {host.load_after} after")
    click.echo(f"verdict: {record.verdict or 'none, the measurement broke off'}")
