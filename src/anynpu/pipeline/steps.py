"""The steps of a build, each a function of its inputs and therefore cached: import, data, compile.

Those that execute what was compiled are in `evidence.py`.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from anynpu import plugins, schema, tool
from anynpu.artifact import Artifact, Manifest, Step, hash_file
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, ToolFailed
from anynpu.measure import calibrated, sources
from anynpu.measure.samples import FILE, SampleSet, write_samples
from anynpu.memory import give_back
from anynpu.pipeline.observer import Observer
from anynpu.pipeline.planner import Link
from anynpu.pipeline.request import Request
from anynpu.pipeline.samples import generated_samples, labels_for, text_samples, zoo_samples
from anynpu.platform import Platform
from anynpu.quantize.calibration import Dataset, load_data, sample_digests, source_digest, split_holdout
from anynpu.quantize.tflite_given import GIVEN
from anynpu.records.parts import own_version
from anynpu.runtime import trial
from anynpu.schema import JsonObject
from anynpu.source import dependencies, load, zoo
from anynpu.source.dependencies import Dependencies
from anynpu.source.original import Proof
from anynpu.store import Built, Store
from anynpu.targets.base import Settles, Work, platform_tools
from anynpu.tasks import card
from anynpu.tasks.images import Preprocess, in_order

HOLDOUT_EVERY = 5
TEXTS = ".txt"
PROOF = "proof.json"


@dataclass(frozen=True)
class Steps:
    """Runs the steps of one request against one store."""

    request: Request
    store: Store
    observer: Observer
    notes: list[str] = field(default_factory=list)
    """What the user should know of the steps themselves."""
    proofs: dict[tuple[str, ...], Proof] = field(default_factory=dict)
    """How the imported graph was compared with the user's model, by the digests of the samples."""
    samples: dict[str, Built] = field(default_factory=dict)
    """The sets of samples that this request has come to, by address."""
    reported: set[str] = field(default_factory=set)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    """What the user's generators gave, by source."""
    apart: dict[str, Dataset] = field(default_factory=dict)
    """Samples that were read with those of another role, by their own, until they are asked for."""
    generated: dict[str, Dependencies] = field(default_factory=dict)
    """What they read meanwhile."""
    built: dict[str, Artifact] = field(default_factory=dict)
    """What the steps of this request have made or found, by address."""

    def run(self, chip: str, stage: str, step: Step, make: Callable[[Path, Work], Manifest]) -> Built:
        """Returns the artifact of a step, telling the observer."""
        self.observer.started(chip, stage)
        built = self.quietly(step, make)
        self.observer.finished(chip, stage, built.seconds, built.hit)
        if built.damage:
            self.notes.append(f"{stage} was built again: the kept one is damaged ({built.damage})")
        return built

    def quietly(self, step: Step, make: Callable[[Path, Work], Manifest]) -> Built:
        """Returns the artifact of a step without a word to the observer; several chips may ask for it."""
        address = step.address
        if address in self.built:
            return Built(self.built[address], True, 0.0)
        built = self.store.build(
            step,
            lambda out, log: make(out, Work(log, self.observer.progress)),
            lambda kept: not self._changed(step, kept),
        )
        self.built[address] = built.artifact
        if not built.hit:
            give_back()  # the steps behind this one run in other processes, next to what it would hold
        return built

    def find(self, step: Step) -> Artifact | None:
        """Returns the artifact of a step where the store has it and nothing that the user's code read has changed."""
        kept = self.store.find(step.address)
        return None if kept is None or self._changed(step, kept) else kept

    def _changed(self, step: Step, kept: Artifact) -> str:
        """Returns what is no longer as the user's code found it, or an empty string."""
        theirs = step.name == "import" and self.request.source.kind == "torch"
        if step.name == "data":
            theirs = sources.generator_of(self._source(step.options["role"])) is not None
        return dependencies.changed(dependencies.read(self.store.reads(step.address)), kept) if theirs else ""

    def _keep(self, step: Step, main: Path, record: Dependencies | None) -> None:
        """Keeps what the user's code read in a step, and says what of it nobody can check later."""
        if record is None:
            return
        read = replace(record, result=hash_file(main))
        dependencies.write(self.store.reads(step.address), read)
        what = "the model is imported" if step.name == "import" else "the samples are made"
        for reason in read.unknown:
            note = f"the user's code {reason}: that cannot be checked later, so {what} again in every build"
            if note not in self.notes:
                self.notes.append(note)

    def import_step(self) -> Step:
        source = self.request.source
        options = schema.to_dict(source)
        # The files count, not where they lie; which object of them and how it is built counts too.
        options["model"] = source.model.rpartition(":")[2] if source.kind not in ("onnx", "tflite") else ""
        options.pop("checkpoint", None)
        if self.chosen is not None:
            options["task"] = self.chosen.unnamed()
        return Step("import", load.identify(source), options, load.tools(source) | {"anynpu": own_version()})

    @functools.cached_property
    def chosen(self) -> card.Chosen | None:
        """The task card that the user names, if any."""
        request = self.request
        if request.tokenizer and not request.task:
            raise ConfigError("--tokenizer goes with --task")
        chosen = card.choose(request.task, request.tokenizer) if request.task else None
        if chosen is not None and chosen.card.preprocess is not None and request.preprocess is not None:
            # Calibrated one way and run the other, a model is worse than its figures say.
            raise ConfigError("-P: the task card says how images become inputs", "change the card")
        return chosen

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the task card calls the model's classes."""
        return self.chosen.card.labels if self.chosen else ()

    def preprocess(self, source: str, model: Artifact) -> Preprocess | None:
        """Returns how images become inputs: as the user says, or else as the task card does and running will."""
        if not sources.is_folder(source):
            return None
        if self.chosen is None or self.chosen.card.preprocess is None:
            return self.request.preprocess
        inputs = model.manifest.inputs
        return in_order(self.chosen.card.preprocess, inputs[0].channels if len(inputs) == 1 else "")

    def import_model(self) -> Built:
        """Returns the float ONNX artifact; missing samples are reported before anything long begins."""
        named = [samples for samples in (self.request.data, self.request.test) if samples]
        for samples in named:
            sources.require(samples)
        if named and self.request.metric and sources.lacks_labels(named[-1]):
            raise ConfigError(f"--metric {self.request.metric}: {named[-1]} has no labels", sources.LABEL_FORMS)
        if self.request.preprocess is not None and not any(map(sources.is_folder, named)):
            what = " and ".join(named) or "this model's own data"
            raise ConfigError(
                f"-P has no effect: {what} holds no images", "-P prepares a folder of images; leave it out"
            )

        step = self.import_step()
        stated = self.request.preprocess or (self.chosen.card.preprocess if self.chosen else None)
        if stated is None and (folder := next(filter(sources.is_folder, named), "")):
            raise sources.unstated(folder)

        def make(out: Path, work: Work) -> Manifest:
            imported = self._imported(out, work)
            manifest = imported.manifest
            self._keep(step, out / manifest.main, imported.dependencies)
            if self.chosen is not None:
                # a head that is found in the model completes the card
                manifest = replace(manifest, task=manifest.task or self.chosen.unnamed())
            return manifest

        built = self.run("", "import", step, make)
        load.check_stated(self.request.source, built.artifact)
        if self.chosen is not None:
            from anynpu.tasks.fits import require_fit as require_card_fit

            require_card_fit(card.of(built.artifact), built.artifact.manifest)
        self._prove(built.artifact)
        return built

    def _imported(self, out: Path, work: Work) -> load.Imported:
        """Writes the float model into a folder; the proof on samples is kept in `proofs`."""
        arguments = {
            "source": self.request.source,
            "out": str(out),
            "task": self.chosen.unnamed() if self.chosen else None,
        }
        if self.chosen is not None:
            self.chosen.copy_to(out)
        samples: list[Artifact] = []

        def answer(manifest: object) -> list[str]:
            model = Artifact(out, schema.from_dict(Manifest, manifest, "import"))
            samples.extend(self._all_samples(model, within=True))
            return [str(artifact.path) for artifact in samples]

        kind = self.request.source.kind
        module = "anynpu.pipeline.tflite_source" if kind == "tflite" else "anynpu.source.load"
        try:
            returned = tool.call(
                f"{module}:import_and_prove",
                arguments,
                scratch=out.parent,
                log=work.log,
                answer=answer,
                whole_environment=kind in ("torch", "zoo"),  # what the user's code reads in it counts
            )
        except ToolFailed as failure:
            if kind != "tflite" or failure.status is None or failure.status >= 0:
                raise
            ended = tool.status_name(failure.status)  # only a damaged file kills LiteRT
            raise IntegrityError(f"{self.request.source.model}: LiteRT ends with {ended}", trial.DAMAGED) from failure
        imported = schema.from_dict(load.Imported, returned, "import")
        self.proofs[tuple(artifact.digest for artifact in samples)] = imported.proof
        return imported

    def _all_samples(self, model: Artifact, within: bool = False) -> list[Artifact]:
        """Returns the calibration and test samples of the request, as far as there are any."""
        sets = [self.data(role, model, within) for role in ("calibration", "test")]
        return [samples for samples in sets if samples is not None]

    def _prove(self, model: Artifact) -> None:
        """Makes sure that the imported graph computes what the user's model does on these very samples."""
        samples = self._all_samples(model)
        if not samples:
            return
        digests = tuple(artifact.digest for artifact in samples)
        inputs = {"model": model.digest, **{f"samples {at}": digest for at, digest in enumerate(digests)}}

        def make(out: Path, work: Work) -> Manifest:
            if digests not in self.proofs:  # the model was imported with other samples
                with tempfile.TemporaryDirectory(dir=out.parent) as again:
                    self._imported(Path(again), work)
            (out / PROOF).write_text(schema.canonical_json(self.proofs[digests]) + "\n", "utf-8")
            return Manifest(format="proof", main=PROOF)

        step = Step("prove", inputs, tools={"anynpu": own_version()})
        main = self.run("", "prove", step, make).artifact.main
        proof = schema.from_dict(Proof, schema.read_json(main), str(main))
        self.notes.extend(note for note in proof.notes if note not in self.notes)

    def data_step(self, role: str, model: Artifact) -> Step | None:
        """Returns the step that makes a set of samples, or None where there is no source for it, or no use."""
        source = self._source(role)
        if not source or (role == "calibration" and model.manifest.format == GIVEN):
            return None
        options: JsonObject = {"role": role, "limit": self.request.limit}
        if source.startswith("zoo:"):
            inputs = {
                "source": schema.digest(
                    [source, *map(str, [hash_file(path) for path in zoo.files(source.removeprefix("zoo:"))])]
                )
            }
        else:
            inputs = {"source": source_digest(source)}
            options["holdout"] = not self.request.test and model.manifest.format != GIVEN
            options["preprocess"] = schema.to_dict(self.preprocess(source, model))
            if sources.is_random(source):
                options["index_sizes"] = dict(model.manifest.details.get("index_sizes", {}))
            if source.endswith(TEXTS) and self.chosen is not None:
                options["tokenizer"] = self.chosen.digests()
        if role != "calibration":
            options["metric"], options["names"] = self.metric, list(self.class_names) if self.metric else []
            options["outputs"] = [list(spec.shape) for spec in model.manifest.outputs]
        inputs["tensors"] = schema.digest([schema.to_dict(s) for s in model.manifest.inputs])
        return Step("data", inputs, options, {"numpy": tool.version_of("numpy"), "anynpu": own_version()})

    def _source(self, role: str) -> str:
        """Returns where the samples of a role come from: what the user gave, or the zoo's own generator."""
        request = self.request
        named = request.test or request.data if role == "test" else request.data
        return named or (f"zoo:{request.source.zoo_name}" if request.source.kind == "zoo" else "")

    def data(self, role: str, model: Artifact, within: bool = False) -> Artifact | None:
        """Returns the calibration or test samples as an artifact; made `within` another step, they are reported after
        it, when they are asked for again."""
        step = self.data_step(role, model)
        if step is None:
            return None

        def make(out: Path, work: Work) -> Manifest:
            dataset, apart = self._load(role, self._source(role), model, work)
            taught = role == "training" and self.metric == "top1" and dataset.labels is not None
            labels = None
            if role == "test" or taught:
                labels = labels_for(dataset, model, self.metric, self.class_names, bool(self.request.metric))
            write_samples(out, SampleSet(dataset.inputs, labels.values if labels and self.metric else None))
            self._keep(step, out / FILE, self.generated.get(self._source(role)))
            return Manifest(
                format="dataset",
                main=FILE,
                inputs=model.manifest.inputs,
                notes=("random numbers, asked for",) if dataset.random else (),
                details={
                    "role": role,
                    "samples": len(dataset),
                    "available": dataset.available,
                    "random": dataset.random,
                    "held_out": apart,
                    "labels": list(labels.notes) if labels else [],
                    "sample_digests": sample_digests(dataset),
                },
            )

        if not within and step.address not in self.samples:
            self.samples[step.address] = self.run("", role, step, make)
            self.reported.add(step.address)
        built = self.samples.get(step.address) or self.quietly(step, make)
        self.samples[step.address] = built
        if not within and step.address not in self.reported:
            self.observer.started("", role)
            self.observer.finished("", role, built.seconds, built.hit)
            self.reported.add(step.address)
        return built.artifact

    def _load(self, role: str, source: str, model: Artifact, work: Work) -> tuple[Dataset, bool]:
        """Returns the samples of a role and whether those of the other role are apart from them."""
        limit = self.request.limit
        if role in self.apart:  # they were read with those of the other role
            return self.apart.pop(role), True
        if source.startswith("zoo:"):
            return zoo_samples(source.removeprefix("zoo:"), role, limit), True
        if source.endswith(TEXTS):
            dataset = text_samples(Path(source), self.chosen, model, limit)
        elif sources.generator_of(source) is not None:
            if source not in self.datasets:  # it runs once for both roles
                self.datasets[source], self.generated[source] = generated_samples(source, model, limit, work.log)
            dataset = self.datasets[source]
        else:
            sizes = model.manifest.details.get("index_sizes", {})
            dataset = load_data(source, model.manifest.inputs, self.preprocess(source, model), limit, sizes)
        if self.request.test or model.manifest.format == GIVEN:  # nothing is calibrated: every sample is there to prove
            return dataset, True
        if len(dataset) < HOLDOUT_EVERY:
            return dataset, False
        kept, held = split_holdout(dataset, HOLDOUT_EVERY)
        if role == "calibration":
            self.apart["test"] = held
        return (held if role == "test" else kept), True

    def settled(self, link: Link, model: Artifact, platform: Platform) -> Link:
        """Returns a compiler with the options that count for this model and chip, which are found out once."""
        target, options = link.target, link.options
        if not isinstance(target, Settles):
            return link
        package, version = plugins.provider("targets", target.name)
        question = Step(
            f"options of {target.name}",
            {"model": model.digest},
            schema.to_dict(options, whole=True),
            {package: version, "anynpu": own_version()},
            platform.name,
            platform.digest,
        )
        settled = self.store.recall(
            question.address, lambda: schema.to_dict(target.settled(options, model, platform), whole=True)
        )
        return replace(link, options=schema.from_dict(type(options), settled, f"options of {target.name}"))

    def compile_step(self, link: Link, model: Artifact, data: Artifact | None, platform: Platform) -> Step:
        """Returns the step of a compiler whose options are settled."""
        inputs = {"model": model.digest}
        if data is not None and link.target.needs_data(link.options):
            inputs["data"] = data.digest
        paths = {f.name: getattr(link.options, f.name) for f in fields(link.options)}
        files = {}
        for name, path in paths.items():
            if isinstance(path, Path):
                if not path.is_file():
                    raise ConfigError(f"-O {name}={path}: no such file")
                files[f"option {name}"] = hash_file(path)
        inputs |= files
        final = link.target.name == platform.target
        package, version = plugins.provider("targets", link.target.name)
        return Step(
            link.target.name,
            inputs,
            schema.to_dict(link.options, whole=True),
            {
                **({} if package == "anynpu" else {package: version}),
                **link.target.tools(),
                **platform_tools(link.target, platform),
                "anynpu": own_version(),
            },
            # A step before the chip's own compiler knows nothing of the chip: chips share it.
            platform=platform.name if final and platform.facts else "",
            platform_digest=platform.digest if final and platform.facts else "",
        )

    def compile(self, chip: str, link: Link, model: Artifact, data: Artifact | None, platform: Platform) -> Artifact:
        """Returns what one compiler makes of an artifact."""
        link = self.settled(link, model, platform)
        samples = data if link.target.needs_data(link.options) else None
        step = self.compile_step(link, model, samples, platform)

        def make(out: Path, work: Work) -> Manifest:
            from anynpu.training.record import carry_record

            with _foreign_errors(link.target.name, work.log):
                manifest = link.target.compile(model, samples, platform, link.options, out, work)
            if samples is not None and samples.manifest.details["random"]:
                manifest = replace(manifest, notes=(*manifest.notes, "calibrated with random numbers"))
            calibrated.keep(out, samples, model)
            carry_record(model.path, out)
            if model.manifest.task:
                card.of(model).copy_to(out)
            return replace(manifest, task=model.manifest.task)

        artifact = self.run(chip, link.target.name, step, make).artifact
        if samples is None and link.target.name != platform.target:
            # Nobody looks into an artifact on the way to a chip.
            self.notes.extend(note for note in artifact.manifest.notes if note not in self.notes)
        return artifact

    @property
    def metric(self) -> str:
        """The task's metric: what the user names, or the zoo's card; top-1 needs to be asked for."""
        source = self.request.source
        return self.request.metric or (zoo.card(source.zoo_name).metric if source.kind == "zoo" else "")


@contextlib.contextmanager
def _foreign_errors(compiler: str, log: Path) -> Iterator[None]:
    """Turns what a compiler's own libraries raise into a failure of that compiler, so that other chips go on."""
    try:
        yield
    except (AnyNpuError, OSError):  # the store knows what a full disk is
        raise
    except Exception as error:
        lines = traceback.format_exc().splitlines()[-8:]
        message = f"compiler {compiler} failed: {type(error).__name__}: {error}"
        raise ToolFailed(message, log=str(log), last_lines=lines) from error
