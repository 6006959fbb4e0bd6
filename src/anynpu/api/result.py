"""What builds and checks come to, as objects that print well and show themselves in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from anynpu import schema
from anynpu.artifact import Artifact, Estimates, Placement
from anynpu.errors import AnyNpuError, ConfigError, Finding, Unsupported
from anynpu.measure.layers import layer_losses
from anynpu.pipeline.check import ChipCheck
from anynpu.pipeline.output import write_output
from anynpu.pipeline.record import record
from anynpu.pipeline.result import BuildResult, ChipResult
from anynpu.records.build import BuildRecord, Verification
from anynpu.records.check import CheckRecord, ChipFindings
from anynpu.records.parts import REPORT, as_json
from anynpu.report import html, junit, markdown
from anynpu.report.figures import chip_row, decibel, table_notes
from anynpu.report.html.markup import Markup, el, join, table
from anynpu.report.text import columns
from anynpu.store import Store

if TYPE_CHECKING:
    from anynpu.api.session import Session

SHOWN_LAYERS = 10


@dataclass(frozen=True)
class Layer:
    """One operator of what was compiled, and how far its output is from the float model's."""

    name: str
    kind: str
    device: str
    sqnr_db: float | None
    """None where the tensor has no counterpart in the float model."""
    lost_db: float | None
    """How much lower that is than the SQNR of the worst input: large where a fault begins."""
    macs: float | None
    time: float | None
    """In `Chip.time_unit`; an estimate where that says so."""


class Chip:
    """What a build came to on one chip."""

    def __init__(self, result: ChipResult, model: Artifact | None) -> None:
        self.result = result
        self._model = model

    @property
    def name(self) -> str:
        return self.result.chip

    @property
    def status(self) -> str:
        """ok, fallback, not executed, or the kind of the error."""
        return self.result.status

    @property
    def ok(self) -> bool:
        """Whether the result was executed, is near enough to the float model, and runs where it should."""
        return self.result.status == "ok"

    @property
    def error(self) -> AnyNpuError | None:
        """What stopped this chip."""
        return self.result.error

    @property
    def verdict(self) -> str:
        """What is wrong with a result that was built, such as operators that fell back to the CPU; or ""."""
        return self.result.verdict

    @property
    def artifact(self) -> Artifact | None:
        """What was compiled, if the build got that far."""
        return self.result.artifact

    @property
    def path(self) -> Path:
        """The folder of what was compiled."""
        return self._require_artifact().path

    @property
    def verification(self) -> Verification | None:
        """The proof: what executed the result, on how many samples, and how far every output is off."""
        return self.result.verification

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantisation noise of the worst output, in dB."""
        return self.result.verification.sqnr_db if self.result.verification else None

    @property
    def cosine(self) -> float | None:
        return self.result.verification.cosine if self.result.verification else None

    @property
    def score(self) -> float | None:
        """The task's metric, 0 to 1, where the samples have labels."""
        return self.result.verification.score if self.result.verification else None

    @property
    def score_float(self) -> float | None:
        """The float model's metric on the same samples."""
        return self.result.verification.score_float if self.result.verification else None

    @property
    def placement(self) -> Placement | None:
        """Which operators run on the NPU, and why others do not; None for a chip without one."""
        return self.artifact.manifest.placement if self.artifact else None

    @property
    def estimates(self) -> Estimates | None:
        """Figures that nobody measured: memory, cycles, latency, as a compiler estimates them."""
        return self.artifact.manifest.estimates if self.artifact else None

    @property
    def time_unit(self) -> str:
        """The unit of `Layer.time`, and whether it is an estimate."""
        return (self.result.graph.time_unit if self.result.graph else "") or ""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Every operator of what was compiled, in order."""
        graph = self.result.graph
        if not graph:
            return ()
        lost = layer_losses(graph)
        return tuple(
            Layer(node.name, node.kind, node.device, node.sqnr_db, lost_db, node.macs, node.time)
            for node, lost_db in zip(graph.nodes, lost, strict=True)
        )

    def worst_layers(self, count: int = SHOWN_LAYERS) -> list[Layer]:
        """Returns the layers that are furthest from the float model."""
        known = [layer for layer in self.layers if layer.sqnr_db is not None]
        return sorted(known, key=lambda layer: layer.sqnr_db or 0.0)[:count]

    def open(self, on: str | None = None, *, timeout: float = 10.0) -> Session:
        """Returns a session that runs what was compiled, on arrays in the layout of the float model."""
        from anynpu.api.session import open_on

        artifact = self._require_artifact()
        specs = None if self._model is None else (self._model.manifest.inputs, self._model.manifest.outputs)
        return open_on(artifact, on, Store(), timeout, specs)

    def _require_artifact(self) -> Artifact:
        if self.result.error is not None:
            raise self.result.error
        if self.artifact is None:
            raise ConfigError(f"{self.name}: nothing was built")
        return self.artifact

    def __repr__(self) -> str:
        quality = "" if self.sqnr_db is None else f", {decibel(self.sqnr_db)} dB"
        return f"<anynpu.Chip {self.name}: {self.status}{quality}>"


class Build(Mapping[str, Chip]):
    """What a build came to: its chips by name, in the order asked for."""

    def __init__(self, result: BuildResult) -> None:
        self.result = result
        self._chips = {chip.chip: Chip(chip, result.model) for chip in result.chips}

    def __getitem__(self, name: str) -> Chip:
        if name not in self._chips:
            raise KeyError(f"{name}: not in this build{schema.near(name, self._chips)}")
        return self._chips[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._chips)

    def __len__(self) -> int:
        return len(self._chips)

    @property
    def ok(self) -> bool:
        """Whether every chip is ok."""
        return all(chip.ok for chip in self._chips.values())

    @property
    def exit_status(self) -> int:
        """What `anynpu build` ends with."""
        return self.result.exit_status

    @property
    def model(self) -> Artifact | None:
        """The float model that every chip is compared with."""
        return self.result.model

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that belong to the figures."""
        return tuple(self.result.notes)

    @cached_property
    def record(self) -> BuildRecord:
        """What report.json holds; `anynpu.schema.to_dict` gives it as JSON."""
        return record(self.result)

    def require(self) -> Build:
        """Returns the build if every chip is ok; raises what stopped the first that is not."""
        for chip in self._chips.values():
            if chip.error is not None:
                raise chip.error
            if not chip.ok:
                raise Unsupported(f"{chip.name}: {chip.verdict or chip.result.not_verified or chip.status}")
        return self

    def save(self, folder: str | PathLike[str], overwrite: bool = False) -> Path | None:
        """Writes artifacts and reports, as `anynpu build -o` does; returns where an earlier folder was kept, if any."""
        return write_output(self.result, Path(folder), overwrite, report_files(self.record))

    def _repr_html_(self) -> str:
        """Returns the closing table, the placement and the worst layers, for a notebook."""
        chips = self.record.chips
        notes = [*table_notes(chips), *self.record.notes]
        parts = [table([chip_row(chip) for chip in chips], caption=self.result.request.source.model)]
        parts.append(el("ul", *(el("li", note) for note in notes)))
        parts += [_details(chip) for chip in self._chips.values()]
        return str(join(parts))

    def __str__(self) -> str:
        chips = self.record.chips
        lines = columns([chip_row(chip) for chip in chips])
        return "\n".join(
            [
                *lines,
                *table_notes(chips),
                *self.record.notes,
                *(_trouble(chip) for chip in self._chips.values() if not chip.ok),
            ]
        )

    def __repr__(self) -> str:
        chips = ", ".join(f"{name}: {chip.status}" for name, chip in self._chips.items())
        return f"<anynpu.Build {self.result.request.source.model}: {chips}>"


def _trouble(chip: Chip) -> str:
    error = chip.error
    if error is None:
        return f"{chip.name}: {chip.verdict or chip.result.not_verified}"
    return f"{chip.name}: {error.message}" + (f" ({error.hint})" if error.hint else "")


def _details(chip: Chip) -> Markup:
    """Returns what one chip is made of: operators off the NPU with the reason, and the layers that are furthest off."""
    parts = []
    if chip.error is not None or chip.verdict:
        parts.append(el("p", _trouble(chip)))
    if placement := chip.placement:
        where = f"{placement.on_npu} of {len(placement.operators)} operators on the {placement.npu}"
        parts.append(el("p", where))
        rows = [{"operator": op.name, "kind": op.kind, "why not": op.reason} for op in placement.elsewhere()]
        parts.append(table(rows))
    layers = [
        {
            "layer": layer.name,
            "operator": layer.kind,
            "on": layer.device,
            "SQNR dB": decibel(layer.sqnr_db),
            "lost dB": "-" if layer.lost_db is None else f"{layer.lost_db:z.1f}",
        }
        for layer in chip.worst_layers()
    ]
    parts.append(table(layers, caption="the layers furthest from the float model"))
    return el("details", el("summary", f"{chip.name}: {chip.status}"), *parts)


def report_files(record: BuildRecord) -> dict[str, str]:
    """Returns the reports of a build by file name, all of the same record."""
    return {
        REPORT: as_json(schema.to_dict(record)),
        "report.md": markdown.render(record),
        "report.html": html.render(record),
        "report.junit.xml": junit.render(record),
    }


@dataclass(frozen=True)
class Checks(Mapping[str, ChipCheck]):
    """What stands in the way of a model on each chip."""

    results: tuple[ChipCheck, ...]

    def __getitem__(self, name: str) -> ChipCheck:
        for result in self.results:
            if result.chip == name:
                return result
        raise KeyError(f"{name}: not in this check{schema.near(name, list(self))}")

    def __iter__(self) -> Iterator[str]:
        return (result.chip for result in self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def ok(self) -> bool:
        """Whether nothing is in the way on any chip."""
        return not self.exit_status

    @property
    def exit_status(self) -> int:
        """What `anynpu check` ends with."""
        return next((result.exit_status for result in self.results if result.exit_status), 0)

    @property
    def record(self) -> CheckRecord:
        """The record that `anynpu check -f json` prints."""
        chips = (
            ChipFindings(chip=r.chip, findings=r.findings, error=r.error.message if r.error else None)
            for r in self.results
        )
        return CheckRecord(chips=tuple(chips))

    def findings(self) -> list[tuple[str, Finding]]:
        """Returns every finding with the name of its chip."""
        return [(result.chip, finding) for result in self.results for finding in result.findings]

    def __str__(self) -> str:
        return "\n".join(line for result in self.results for line in check_lines(result))

    def _repr_html_(self) -> str:
        return str(join(el("pre", str(self))))


def check_lines(result: ChipCheck) -> list[str]:
    """Returns what was found on one chip, as text."""
    count = len(result.findings)
    if result.error:
        head = result.error.message + (f" ({result.error.hint})" if result.error.hint else "")
    else:
        head = f"{count} finding{'s' * (count != 1)}" if count else "nothing in the way"
    return [f"{result.chip}: {head}", *(f"  {finding}" for finding in result.findings)]
