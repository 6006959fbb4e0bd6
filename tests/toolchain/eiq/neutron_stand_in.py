"""A neutron-converter for tests: it takes the same arguments, says the same words and writes a file of the same form.

It computes nothing: each run of operators that it "converts" becomes one NeutronGraph with microcode of our own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from anynpu.testing.misbehave import misbehave

HERE = Path(__file__).parent
SCRIPT = """#!{python}
import sys
sys.path.insert(0, {here!r})
from neutron_stand_in import main
main({plan!r}, sys.argv[1:])
"""
TARGETS = ("mcxn54x", "mcxn94x", "imxrt700", "imx95", "imx943", "imx952", "s32k5", "s32n79")


def write_tool(folder: Path, name: str = "neutron-converter", **plan: object) -> Path:
    """Writes the program and what it is to do into a folder's bin, and returns the folder.

    leave=kinds of operators that stay; version; says=lines to print; says_left=a wrong count; silent; status; crash;
    hang; nothing; keep=bytes of the result to write; content=hex of what it writes instead; plain (converts nothing);
    added=True puts a SLICE in; renamed=True gives what stays new names; other_scale; no_microcode; dangling;
    targets=None for a version that has no --show-targets.
    """
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    program = folder / "bin" / name
    program.write_text(SCRIPT.format(python=sys.executable, here=str(HERE), plan=json.dumps(plan)))
    program.chmod(0o755)
    return folder


def main(plan_text: str, argv: list[str]) -> None:
    """Does what the plan says."""
    import argparse

    plan = json.loads(plan_text)
    name = plan.get("version", "3.1.1+0X5a5a5a5a")
    if argv == ["--version"]:
        sys.exit(print(f"eIQ neutron-converter version {name}") if name else 1)
    if argv == ["--show-targets"]:
        listed = plan.get("targets", TARGETS)
        sys.exit("unrecognised option '--show-targets'" if listed is None else print("\n".join(_listed(listed))))
    parser = argparse.ArgumentParser()
    for flag in ("--input", "--output", "--target"):
        parser.add_argument(flag, required=True)
    for flag in ("--use-sequencer", "--fetch-constants-to-sram"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args(argv)
    print("Converting model with the following options:", flush=True)
    for key in ("input", "output", "target"):
        print(f"  {key.title():6} = {getattr(given, key)}", flush=True)
    misbehave(plan)
    if plan.get("status") or plan.get("nothing"):
        sys.exit(plan.get("status"))
    _convert(plan, Path(given.input), Path(given.output), given)


def _listed(targets: list[str]) -> list[str]:
    return ["Available targets:", *(f"  {target} : NXP chip" for target in targets)]


def _convert(plan: dict, source: Path, result: Path, given) -> None:
    if "content" in plan:
        result.write_bytes(bytes.fromhex(plan["content"]))
        return
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(source.read_bytes(), 0))
    graph = model.subgraphs[0]
    before = len(graph.operators)
    left, graphs = Conversion(schema, model, plan).run()
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    result.write_bytes(bytes(builder.Output())[: plan.get("keep")])
    (result.parent / "kernel_selection.c").write_text("/* left beside the result */\n")
    if not plan.get("silent"):
        _report(before, plan.get("says_left", left), graphs, plan)


def _report(before: int, left: int, graphs: int, plan: dict) -> None:
    print("Starting TCM allocation. This might take a while.")
    print("Conversion statistics:")
    print(f"  Number of operators after import    = {before}")
    print(f"  Number of operators after optimize  = {before}")
    print(f"    Number of operators converted     = {before - left}")
    print(f"    Number of operators NOT converted = {left}")
    print(f"  Number of operators after extract   = {graphs + left}")
    print(f"    Number of Neutron graphs          = {graphs}")
    print(f"    Number of operators NOT converted = {left}")
    print(f"  Operator conversion ratio           = {before - left} / {before} = {(before - left) / before:.6g}")
    print(f"Time for optimization = {__import__('time').monotonic() % 1:.6f} (seconds)")
    print('Overall statistics for graph "main":')
    print("  Memory:")
    print(f"    Total data    = {plan.get('data_bytes', 16512):,} (bytes) (Inputs + Outputs + Intermediate Tensors)")
    print("    Total weights = 30,400 (bytes) (Weights)")


class Conversion:
    """The change of one model."""

    def __init__(self, schema, model, plan: dict) -> None:
        self.schema, self.model, self.plan = schema, model, plan
        self.graph = model.subgraphs[0]

    def run(self) -> tuple[int, int]:
        """Changes the model and returns how many operators stay and how many NeutronGraphs there are."""
        if self.plan.get("other_scale"):
            self.graph.tensors[self.graph.outputs[0]].quantization.scale = [0.123]
        made, run = [], []
        for op in [*self.graph.operators, None]:
            if op is not None and not self._stays(op):
                run.append(op)
                continue
            if run:
                made += self._neutron(run)
                run = []
            if op is not None:
                made.append(self._renamed(op))
        self.graph.operators = made
        graphs = sum(self._code(op).customCode == b"NeutronGraph" for op in made)
        return len(made) - graphs, graphs

    def _code(self, op):
        return self.model.operatorCodes[op.opcodeIndex]

    def _stays(self, op) -> bool:
        names = {v: k for k, v in vars(self.schema.BuiltinOperator).items() if isinstance(v, int)}
        return bool(self.plan.get("plain")) or names[self._code(op).builtinCode] in self.plan.get("leave", ())

    def _renamed(self, op):
        if self.plan.get("renamed"):
            for index in op.outputs:
                if index not in list(self.graph.outputs):
                    self.graph.tensors[index].name += b"_neutron"
        return op

    def _neutron(self, run: list) -> list:
        inside = {i for op in run for i in op.outputs}
        later = {i for op in self.graph.operators if op not in run for i in op.inputs} | set(self.graph.outputs)
        reads = dict.fromkeys(i for op in run for i in op.inputs if i >= 0 and i not in inside and self._varies(i))
        gives = [i for i in inside if i in later]
        if self.plan.get("dangling"):
            gives = gives[1:]
        program = [self._tensor(name, size) for name, size in (("microcode", 64), ("weights", 128), ("kernels", 0))]
        if self.plan.get("no_microcode"):
            self.graph.tensors[program[0]].buffer = 0
        op = self.schema.OperatorT()
        op.opcodeIndex = self._opcode("CUSTOM", b"NeutronGraph")
        op.inputs, op.outputs = [*reads, *program], [*gives, self._tensor("scratch", 0, 256)]
        return [op, *self._slice(op)] if self.plan.get("added") else [op]

    def _slice(self, op) -> list:
        """Returns a SLICE from a padded copy of the NPU's output to the real one."""
        real = op.outputs[0]
        padded = self._tensor("padded", 0, like=self.graph.tensors[real])
        rank = len(self.graph.tensors[real].shape)
        begin, size = (self._numbers(v) for v in ([0] * rank, list(self.graph.tensors[real].shape)))
        op.outputs = [padded, *op.outputs[1:]]
        cut = self.schema.OperatorT()
        cut.opcodeIndex = self._opcode("SLICE")
        cut.inputs, cut.outputs = [padded, begin, size], [real]
        cut.builtinOptionsType, cut.builtinOptions = (
            self.schema.BuiltinOptions.SliceOptions,
            self.schema.SliceOptionsT(),
        )
        return [cut]

    def _varies(self, index: int) -> bool:
        data = self.model.buffers[self.graph.tensors[index].buffer].data
        return data is None or len(data) == 0

    def _opcode(self, kind: str, custom: bytes | None = None) -> int:
        code = self.schema.OperatorCodeT()
        code.builtinCode = getattr(self.schema.BuiltinOperator, kind)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.customCode, code.version = custom, 1
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1

    def _tensor(self, name: str, constant: int, size: int = 16, like=None) -> int:
        tensor = self.schema.TensorT()
        tensor.name = f"neutron_{name}_{len(self.graph.tensors)}".encode()
        tensor.type = like.type if like else self.schema.TensorType.UINT8
        tensor.shape = list(like.shape) if like else [constant or size]
        tensor.quantization = like.quantization if like else None
        buffer = self.schema.BufferT()
        buffer.data = list(range(constant)) if constant else None
        self.model.buffers.append(buffer)
        tensor.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def _numbers(self, values: list[int]) -> int:
        import numpy as np

        index = self._tensor("numbers", 1)
        tensor = self.graph.tensors[index]
        tensor.type, tensor.shape = self.schema.TensorType.INT32, [len(values)]
        self.model.buffers[tensor.buffer].data = list(np.asarray(values, np.int32).tobytes())
        return index
