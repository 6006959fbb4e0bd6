"""The Neutron target: a quantised TFLite file becomes one whose operators run on an NXP Neutron NPU."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from anynpu.artifact import Artifact, Estimates, Manifest
from anynpu.errors import ConfigError, Finding, IntegrityError
from anynpu.platform import Platform
from anynpu.targets.base import Work, other_version, scratch
from anynpu.targets.flatbuffer import operators
from anynpu.targets.memory_fit import beyond, require_fit
from anynpu.targets.neutron import command, receipt
from anynpu.targets.neutron.command import NAME, OUTPUT, NeutronFacts, NeutronOptions
from anynpu.targets.neutron.log import read_statistics
from anynpu.targets.neutron.made import read_made

NOT_EXECUTED = "no simulator of the Neutron is public: what is verified is the TFLite model before the conversion"


class Neutron:
    """Compiles int8 TFLite files for NXP's Neutron NPUs."""

    name = "neutron"
    accepts = "tflite"
    produces = "tflite-neutron"
    Options = NeutronOptions
    Facts = NeutronFacts

    def tools(self) -> Mapping[str, str]:
        """Returns neutron-converter with the version it says, and what tells its file from another's."""
        installed = command.find()
        return {NAME: f"{command.version(installed) or 'unknown'} ({installed.version})"}

    def needs_data(self, options: NeutronOptions) -> bool:
        """The model is quantised already."""
        return False

    def check(self, model: Artifact, platform: Platform, options: NeutronOptions) -> tuple[Finding, ...]:
        """Returns the operators that a Neutron cannot run for their type; NXP publishes no other rules."""
        _target(platform, options)
        return tuple(
            Finding("neutron-int8", receipt.NOT_INT8.format(strange), f"{op.kind} {op.name}")
            for op in operators(model.main)
            if (strange := receipt.not_int8(op)) and op.kind not in ("QUANTIZE", "DEQUANTIZE")
        )

    def compile(
        self,
        model: Artifact,
        data: Artifact | None,
        platform: Platform,
        options: NeutronOptions,
        out: Path,
        work: Work,
    ) -> Manifest:
        """Writes the converted model and returns what it is."""
        before = operators(model.main)
        installed, target = command.find(), _target(platform, options)
        unlisted = command.require_target(installed, target)
        with scratch(out / "neutron") as room:
            shutil.copyfile(model.main, room / command.INPUT)
            output = command.convert(installed, room, target, options, work.log)
            try:
                after = read_made(room / OUTPUT, model.manifest)
            except (IntegrityError, ConfigError) as error:
                words = error.message.replace(f"{room / OUTPUT}: ", "")
                argv = [NAME, *command.arguments(target, options)]
                message = f"{NAME} ended well, but its {OUTPUT} is not the model: {words}"
                raise installed.toolchain.failed(message, work.log, argv, said=output) from None
            receipt.require_npu(platform.npu, before, after)
            statistics = read_statistics(output)
            sram, flash = f"{NAME} needs {{}} of SRAM for tensors", "the converted model takes {} of flash"
            stored = (room / OUTPUT).stat().st_size
            too_large = beyond(platform, statistics.data_bytes, sram, stored, flash)
            require_fit(platform, too_large, "try a smaller input or a smaller model")
            (room / OUTPUT).replace(out / OUTPUT)
        version = command.version(installed)
        memory = f"; SRAM is what {NAME} {version} calls total data" if statistics.data_bytes is not None else ""
        notes = [NOT_EXECUTED]
        if version.partition("+")[0] not in command.WRITTEN_FOR:
            versions = " and ".join(command.WRITTEN_FOR)
            notes += other_version(NAME, versions, version or "one that does not say its version")
        notes.append(f"the firmware needs the Neutron libraries of the same eIQ release as {NAME} {version}".rstrip())
        return Manifest(
            format=self.produces,
            main=OUTPUT,
            inputs=model.manifest.inputs,
            outputs=model.manifest.outputs,
            fingerprint=model.manifest.fingerprint,
            placement=receipt.placement(platform.npu, before, after),
            estimates=Estimates(
                source=f"MACs counted from the graph; flash is the file's size{memory}",
                macs=sum(op.macs for op in before),
                sram_bytes=statistics.data_bytes,
                flash_bytes=(out / OUTPUT).stat().st_size,
            ),
            notes=(*notes, *filter(None, [unlisted]), *receipt.disagreements(statistics, after)),
            details={
                "accelerator": target,
                "converter": version,
                "said": {k: v for k, v in asdict(statistics).items() if v is not None},
                "file_bytes": (out / OUTPUT).stat().st_size,
            },
        )


def _target(platform: Platform, options: NeutronOptions) -> str:
    return options.neutron_target or platform.facts_as(NeutronFacts).target
