"""What changed from one toolchain version to the next: figures of the ledger, grouped by network, chip and metric."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from anynpu.errors import ConfigError
from anynpu.measure.compare import SAME, Latency, Rules, judge_latency, verdict_of
from anynpu.measure.significance import holm
from anynpu.records.ledger import Change, Row
from anynpu.schema import near

LAST = "last"
Version = tuple[tuple[str, str], ...]


def changes(rows: Sequence[Row], against: str, rules: Rules) -> list[Change]:
    """Returns the change of every metric that two versions have; p-values are corrected for their number."""
    unadjusted: list[Change] = []
    for members in _groups(rows):
        versions: dict[Version, list[Row]] = {}
        for row in members:
            versions.setdefault(version_of(row), []).append(row)
        newest = version_of(members[-1])
        others = [version for version in versions if version != newest]
        if against != LAST:
            others = [version for version in others if against in names_of(versions[version][0])]
        older = max(others, key=lambda version: versions[version][-1].at, default=None)
        if older is not None:
            unadjusted.append(_change(versions[older], versions[newest], rules))
    seen = {name for row in rows for name in names_of(row)}
    if against != LAST and against not in seen:
        raise ConfigError(f"--against {against}: no row of the ledger is of that version{near(against, seen)}")
    adjusted = iter(holm([c.p_value for c in unadjusted if c.p_value is not None]))
    result = []
    for change in unadjusted:
        if change.p_value is not None:
            p_value = next(adjusted)
            gain = -math.log(change.ratio or 1.0)
            verdict = verdict_of(gain, p_value, rules.level, math.log1p(rules.margin))
            change = replace(change, p_value=p_value, verdict=verdict)
        result.append(change)
    return sorted(result, key=lambda c: (c.verdict == SAME, c.fingerprint, c.chip, c.metric))


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns rows that may be compared, the oldest first: the same subject, made with options that do not differ."""
    subjects: dict[tuple[str, ...], list[list[Row]]] = {}
    for row in sorted(rows, key=lambda row: row.at):
        groups = subjects.setdefault(row.subject, [])
        # An option that a version does not know says nothing.
        shared = [(group, group[0].options.keys() & row.options.keys()) for group in groups]
        fitting = next((g for g, names in shared if all(g[0].options[n] == row.options[n] for n in names)), None)
        if fitting is None:
            groups.append([row])
        else:
            fitting.append(row)
    return [group for groups in subjects.values() for group in groups]


def version_of(row: Row) -> Version:
    """Returns the versions that made a figure: its tools, or anynpu's own where no tool is named."""
    return tuple(sorted(row.tools.items())) or (("anynpu", row.anynpu),)


def names_of(row: Row) -> list[str]:
    """Returns what `--against` may call the version of a row: 3.12.0 or ethos-u-vela=3.12.0."""
    return [text for tool, version in version_of(row) for text in (version, f"{tool}={version}")]


def _change(before: Sequence[Row], after: Sequence[Row], rules: Rules) -> Change:
    old, new = before[-1], after[-1]
    was, now = (statistics.median(row.value for row in rows) for rows in (before, after))
    names = sorted({**dict(version_of(old)), **dict(version_of(new))})
    tools = {
        name: (dict(version_of(old)).get(name, "-"), dict(version_of(new)).get(name, "-"))
        for name in names
        if dict(version_of(old)).get(name) != dict(version_of(new)).get(name)
    }
    ratio = now / was if was else None
    # Of two single figures any change beyond the margin counts.
    change = (now - was) / max(abs(was), 1e-300)
    single = verdict_of(change if new.better == "higher" else -change, 0.0, rules.level, rules.margin)
    plain = Change(*new.subject[:4], was, now, tools, ratio, None, None, single)
    tested, note = _tested(before, after, rules)
    if tested is None:
        return replace(plain, note=note)
    return replace(
        plain,
        before=tested.a,
        after=tested.b,
        ratio=tested.ratio,
        interval=(tested.low, tested.high),
        p_value=tested.p_value,
        verdict=tested.verdict,
        note=note,
    )


def _tested(before: Sequence[Row], after: Sequence[Row], rules: Rules) -> tuple[Latency | None, str]:
    """Returns the test on raw samples where both versions have them; runs of one version are launches."""
    a, b = ([launch for row in rows for launch in row.launches] for rows in (before, after))
    if not a or not b:
        return None, ""
    if (len(a) == 1) != (len(b) == 1):
        return None, "one launch on one side and several on the other: no test"
    try:
        latency = judge_latency(a, b, rules)
    except ConfigError as error:
        return None, error.message
    return latency, "one launch each" if latency.replicates == "blocks" else f"{len(a)} and {len(b)} launches"
