"""The steps of a build that execute what was compiled and look into it: verify, repeat, layers, diagnose."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from anynpu import plugins, schema, tool
from anynpu.artifact import Artifact, Manifest, Step
from anynpu.errors import ToolMissing, Unsupported
from anynpu.measure import remembered
from anynpu.measure import repeat as repeating
from anynpu.measure.expected import FILE as EXPECTED
from anynpu.measure.repeat import ANSWERS, Repetition
from anynpu.measure.verify import REFERENCES
from anynpu.pipeline.layers import FILE as LAYERS
from anynpu.pipeline.layers import drawable, float_twin
from anynpu.pipeline.steps import Steps
from anynpu.pipeline.stream_error import FILE as INNER
from anynpu.pipeline.stream_error import stream_errors
from anynpu.platform import Platform
from anynpu.records.build import Verification
from anynpu.records.diagnosis import Diagnosis
from anynpu.records.parts import own_version
from anynpu.runtime import int8_sums, trial
from anynpu.runtime.base import choose, sessions_for
from anynpu.targets.base import Work

VERIFICATION, REPETITION, TEACHER, DIAGNOSIS = "verification.json", "repetition.json", "teacher.json", "diagnosis.json"
REPEATED = "tflite"
"""What compilers take that mean to repeat it."""


def verify(
    steps: Steps,
    platform: Platform,
    candidate: Artifact,
    model: Artifact,
    data: Artifact,
    oracle: Artifact | None = None,
    floating: Artifact | None = None,
) -> Artifact:
    """Returns the evidence: the candidate executed and compared with the float model, and with `oracle` bit by bit.

    `floating` is the float TFLite model that it was quantised from: it must compute what the float model does. Four
    things that such a run finds out are steps of their own, so that the other chips of the model need not: what the
    float model answers, that its float TFLite twin answers the same, what a compiler of the candidate must repeat, and
    what each runtime answers.
    """
    inputs = _digests(candidate=candidate, reference=model, data=data, oracle=oracle, float=floating)
    # A shared cache may hold what another CPU gave: its instructions are part of the evidence.
    tools = {**_tools(), "cpu": int8_sums.host()}
    reference = choose(candidate.manifest.format)
    # The reference runtime comes first anyway: chips that ask for it share the evidence with those that do not.
    # One that runs the chip's own artifact says nothing about an earlier one that stands for it.
    able = {kind.name for kind in sessions_for(candidate.manifest.format)} - {reference.name}
    device = platform.device if platform.device in able else ""
    step = Step("verify", inputs, {"metric": steps.metric, "device": device}, tools)
    answered = Step("float", _digests(reference=model, data=data), tools=tools)
    converted = Step("converted", {**answered.inputs, "float": inputs.get("float", "")}, tools=tools)
    shared = {EXPECTED: answered, **answer_steps(candidate, data, tools)}

    def make(out: Path, work: Work) -> Manifest:
        taught, folder = out.parent / ANSWERS, out.parent / "shared"
        folder.mkdir()
        lent = {name for name, each in shared.items() if _lent(steps, each, folder / name)}
        arguments = {
            **_paths(candidate=candidate, reference=model, data=data, oracle=oracle),
            "shared": str(folder),
            "answers": str(out / "vectors.npz"),
            "taught": str(taught) if candidate.manifest.format == REPEATED else "",
            "metric": steps.metric,
            "device": device or None,
            "random": bool(data.manifest.details["random"]),
        }
        function = "anynpu.measure.verify:verify"
        unproved = None if steps.find(converted) else floating
        if unproved is not None:
            function, arguments["floating"] = "anynpu.pipeline.conversion:verify_converted", str(unproved.path)
        answer = tool.call(function, arguments, scratch=out.parent, log=work.log, progress=work.progress)
        verification = schema.from_dict(Verification, answer, "verification")
        if unproved is not None:  # there are no answers to keep: that the step is there is the proof
            steps.quietly(converted, lambda place, _: _taught(place, place / ANSWERS))
        if taught.is_file():
            steps.quietly(_teaching(candidate, model, data), lambda place, _: _taught(place, taught))
        for file in sorted(each for each in folder.iterdir() if each.name not in lent):
            steps.quietly(shared[file.name], partial(_moved, file))
        if verification.device == reference.name:
            trial.passed(candidate, reference)
        trial.passed(model, choose(model.manifest.format, REFERENCES.get(model.manifest.format)))
        return _written(out, VERIFICATION, replace(verification, held_out=bool(data.manifest.details["held_out"])))

    return steps.run(platform.name, "verify", step, make).artifact


def answer_steps(candidate: Artifact, data: Artifact, tools: Mapping[str, str]) -> dict[str, Step]:
    """Returns the steps that hold what each runtime of a candidate answers to the samples, by the names of their files;
    none where one runtime alone takes it."""
    format, inputs = candidate.manifest.format, _digests(candidate=candidate, data=data)
    return {
        remembered.answers_file(kind.name): Step("answers", inputs, {"session": kind.name}, dict(tools))
        for kind in (sessions_for(format) if format in remembered.FORMATS else ())
    }


def read_verification(evidence: Artifact, stands_for: str) -> Verification:
    """Returns the verification that a verify step stored; `stands_for` is the format it had to take the place of."""
    data = schema.read_json(evidence.main)
    return schema.from_dict(Verification, {**data, "stands_for": stands_for}, str(evidence.main))


def repeat(
    steps: Steps, chip: str, candidate: Artifact, oracle: Artifact, model: Artifact, data: Artifact
) -> Repetition:
    """Returns whether what was compiled computes, bit by bit, what the artifact before it does.

    What that one answers to the first samples is a step of its own, one for all chips; where it was verified in the
    same store, that has left it already.
    """

    def teach(out: Path, work: Work) -> Manifest:
        arguments = _paths(oracle=oracle, reference=model, data=data) | {"answers": str(out.parent / ANSWERS)}
        answer = tool.call("anynpu.measure.repeat:teach", arguments, scratch=out.parent, log=work.log)
        return _taught(out, out.parent / ANSWERS, str(answer))

    taught = steps.run(chip, "teach", _teaching(oracle, model, data), teach).artifact

    def make(out: Path, work: Work) -> Manifest:
        arguments = _paths(candidate=candidate, oracle=oracle, reference=model, data=data)
        arguments["answers"] = str(taught.path / ANSWERS)
        if candidate.manifest.placement is not None and not candidate.manifest.placement.elsewhere():
            repetition = repeating.repeat(**arguments)  # our own code alone: another Python takes longer to start
        else:
            answer = tool.call("anynpu.measure.repeat:repeat", arguments, scratch=out.parent, log=work.log)
            repetition = schema.from_dict(Repetition, answer, "repetition")
        if not repetition.refused:
            trial.passed(candidate, choose(candidate.manifest.format))
            repetition = replace(repetition, not_compared=schema.read_json(taught.main)["not_compared"])
        return _written(out, REPETITION, repetition)

    step = Step("repeat", _digests(candidate=candidate, oracle=oracle, reference=model, data=data), tools=_tools())
    evidence = steps.run(chip, "execute", step, make).artifact
    return schema.from_dict(Repetition, schema.read_json(evidence.main), str(evidence.main))


def layers(steps: Steps, chip: str, chain: Sequence[Artifact], data: Artifact) -> Artifact | None:
    """Returns nodes and tensors of the last artifact of a chain that can be read, next to the float model it begins
    with: error and cost of every layer, and the float model's inner tensors for the first samples."""
    subject, twin = drawable(chain), float_twin(chain)
    if subject is None:
        return None

    def make(out: Path, work: Work) -> Manifest:
        arguments = _paths(candidate=subject, reference=chain[0], floating=twin, data=data) | {
            "inner": str(out / INNER)
        }
        function = "anynpu.pipeline.layers:inspect"
        answer = tool.call(function, arguments, scratch=out.parent, log=work.log, progress=work.progress)
        return _written(out, LAYERS, answer, "layers")

    step = Step("layers", _digests(candidate=subject, reference=chain[0], data=data, float=twin), tools=_tools())
    return steps.run(chip, "layers", step, make).artifact


def stream_layers(
    steps: Steps, chip: str, chain: Sequence[Artifact], model: Artifact, data: Artifact, drawn: Artifact
) -> Mapping[str, float]:
    """Returns the error of every tensor that an NPU's command stream stores, by its name before the compiler; `drawn`
    is what `layers` returned."""
    final, before = chain[-1], chain[-2]

    def make(out: Path, work: Work) -> Manifest:
        return _written(out, LAYERS, stream_errors(final, before, model, data, drawn.path / INNER), "layers")

    inputs = _digests(candidate=final, reference=model, data=data, layers=drawn)
    step = Step("stream-layers", inputs, tools={"anynpu": own_version()})
    errors: Mapping[str, float] = schema.read_json(steps.run(chip, "layers", step, make).artifact.main)
    return errors


def diagnose(
    steps: Steps, chip: str, chain: Sequence[Artifact], data: Artifact, calibration: Artifact | None
) -> Diagnosis:
    """Returns where the last artifact of a chain that can be read loses the float model, and by what cause."""
    subject, twin = drawable(chain), float_twin(chain)
    if subject is None or subject.digest == chain[0].digest:
        raise Unsupported(f"nothing here reads the operators of {chain[-1].manifest.format}")
    count = 0 if calibration is None else int(calibration.manifest.details["samples"])

    def make(out: Path, work: Work) -> Manifest:
        paths = _paths(candidate=subject, reference=chain[0], floating=twin, data=data)
        arguments = {**paths, "calibration_samples": count}
        function = "anynpu.pipeline.diagnosis.run:diagnose"
        answer = tool.call(function, arguments, scratch=out.parent, log=work.log, progress=work.progress)
        return _written(out, DIAGNOSIS, answer, "diagnosis")

    inputs = _digests(candidate=subject, reference=chain[0], data=data, float=twin)
    step = Step("diagnose", inputs, {"calibration_samples": count}, _tools())
    artifact = steps.run(chip, "diagnose", step, make).artifact
    return schema.from_dict(Diagnosis, schema.read_json(artifact.main), str(artifact.main))


def _digests(**artifacts: Artifact | None) -> dict[str, str]:
    """Returns the inputs of a step: the digests of the artifacts that there are."""
    return {name: artifact.digest for name, artifact in artifacts.items() if artifact is not None}


def _paths(**artifacts: Artifact | None) -> dict[str, str]:
    """Returns the arguments of a child process: the folders of artifacts, and "" for one that is not there."""
    return {name: "" if artifact is None else str(artifact.path) for name, artifact in artifacts.items()}


def _written(out: Path, name: str, data: object, format: str = "evidence") -> Manifest:
    """Writes the result of a step as JSON."""
    (out / name).write_text(schema.canonical_json(data) + "\n", "utf-8")
    return Manifest(format=format, main=name)


def _moved(file: Path, out: Path, _: Work) -> Manifest:
    """Moves a file into the folder of a step whose result it is."""
    file.replace(out / file.name)
    return Manifest(format="evidence", main=file.name)


def _taught(out: Path, answers: Path, not_compared: str = "") -> Manifest:
    """Moves the answers of a teacher, if it has any, into the folder of its step."""
    if answers.is_file():
        answers.replace(out / ANSWERS)
    return _written(out, TEACHER, {"not_compared": not_compared})


def _lent(steps: Steps, step: Step, place: Path) -> bool:
    """Copies the file of a step to a place where the store has it; others may clear the store meanwhile."""
    kept = steps.find(step)
    with contextlib.suppress(FileNotFoundError):
        return kept is not None and bool(shutil.copyfile(kept.main, place))
    return False


def _teaching(oracle: Artifact, model: Artifact, data: Artifact) -> Step:
    """Returns the step that holds what an artifact answers to the first samples."""
    return Step("teach", _digests(oracle=oracle, reference=model, data=data), tools=_tools())


def _tools() -> dict[str, str]:
    """Returns what executes artifacts here, by version."""
    packages = dict(plugins.provider("sessions", name) for name in plugins.names("sessions"))
    for name in ("onnxruntime", "ai-edge-litert", "tflite-micro", "ethos-u-vela"):
        with contextlib.suppress(ToolMissing):
            packages[name] = tool.version_of(name)
    return {**packages, "anynpu": own_version()}  # with a digest of our own code
