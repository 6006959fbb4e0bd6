"""What no module below the command line does."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
from source_tree import SOURCE, Module, modules

UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def dotted(node: ast.AST) -> str:
    """Returns "os.path.join" for such an expression, or an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def prints(module: Module) -> list[str]:
    """print belongs to the command line: stdout is data."""
    calls = (n for n in ast.walk(module.tree) if isinstance(n, ast.Call))
    return [module.at(n) for n in calls if dotted(n.func) == "print"] if module.top not in ("cli", "__main__") else []


def exits(module: Module) -> list[str]:
    """Only the command line ends the process, a child that tool.py starts or a decoder forks, and a vendor's worker."""
    if module.top in ("cli", "__main__") or module.name == "capsules.workers.serve":
        return []
    children = {
        "child": ("answer_request",),
        "nursery": ("_keep", "_live"),
        "runtime.ethos_u.weights": ("_decode_all",),
    }
    child = [f for f in module.functions() if f.name in children.get(module.name, ())]
    inside = {id(n) for f in child for n in ast.walk(f)}
    ends = [n for n in ast.walk(module.tree) if dotted(n) in ("sys.exit", "os._exit", "exit", "quit")]
    raised = [n for n in ast.walk(module.tree) if isinstance(n, ast.Raise) and "SystemExit" in ast.unparse(n)]
    return [module.at(n) for n in ends + raised if id(n) not in inside]


def asserts(module: Module) -> list[str]:
    """An assert tells the type checker what we know, that something is not None or of a type; no more than that."""
    return [
        module.at(n)
        for n in ast.walk(module.tree)
        if isinstance(n, ast.Assert) and module.top != "testing" and not narrows(n.test)
    ]


def narrows(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(narrows(value) for value in test.values)
    if isinstance(test, ast.Call):
        return dotted(test.func) == "isinstance" and isinstance(test.args[0], ast.Name)
    return isinstance(test, ast.Compare) and ast.unparse(test).endswith(" is not None") and len(test.ops) == 1


def shells(module: Module) -> list[str]:
    """Programs are argv lists; no shell reads them."""
    calls = [n for n in ast.walk(module.tree) if isinstance(n, ast.Call)]
    with_shell = [n for n in calls if any(k.arg == "shell" for k in n.keywords)]
    named = [n for n in calls if dotted(n.func) in ("os.system", "os.popen", "subprocess.getoutput")]
    return [module.at(n) for n in with_shell + named]


def pickles(module: Module) -> list[str]:
    """Files are never unpickled, by us or by numpy; torch.load is called in one module, which may name its error."""
    nodes = list(ast.walk(module.tree))
    only_its_error = all(dotted(n) == "pickle.UnpicklingError" for n in nodes if dotted(n).startswith("pickle."))
    excused = {"pickle"} if module.name == "source.checkpoint" and only_its_error else set()
    imports = [n for name, n in module.imports() if name.partition(".")[0] in UNPICKLERS - excused]
    loads = [n for n in nodes if dotted(n) == "torch.load" and module.name != "source.checkpoint"]
    keywords = [n for n in nodes if isinstance(n, ast.keyword) and n.arg == "allow_pickle"]
    return [module.at(n) for n in imports + loads + [k for k in keywords if ast.unparse(k.value) != "False"]]


def untyped(module: Module) -> list[str]:
    """Every argument and every result has a type."""
    found = []
    for f in module.functions():
        a = f.args
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
        bare = [x.arg for x in every if x.annotation is None and x.arg not in ("self", "cls")]
        bare += ["return"] if f.returns is None else []
        found += [f"{module.at(f)}: {f.name}: {', '.join(bare)}"] if bare else []
    return found


HOMES = {
    "InferenceSession": ("runtime.ort",),
    "Interpreter": ("runtime.litert",),
    "get_close_matches": ("schema",),
    "GetRootAs": ("runtime.tflite_file",),
    "read_model_from_bytearray": ("runtime.tflite_file",),
}
MAGIC = {b"\x7fELF": ("elf", "testing.cix"), b"TFL3": ("runtime.tflite_form",)}
"""The first bytes of a kind of file stand where it is read, and in the writer that its reader is tested with."""


def second_openers(module: Module) -> list[str]:
    """ONNX Runtime, LiteRT, TFLite and ELF files and near names have one module each; workers run without anynpu."""
    if module.name.startswith("capsules.workers.") or module.name == "source.kinds":  # it knows every kind by its bytes
        return []
    nodes = list(ast.walk(module.tree))
    homes = {n: HOMES.get(dotted(n.func).rpartition(".")[2]) for n in nodes if isinstance(n, ast.Call)}
    texts = [n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, bytes)]
    homes |= {n: MAGIC.get(n.value[:4]) for n in texts}
    return [module.at(n) for n, home in homes.items() if home and module.name not in home]


ANYTHING_GOES = {
    *(
        "child",
        "plugins",
        "cli.main",
        "pipeline.steps",
        "pipeline.build",
        "capsules.workers",
        "testing",
        "apps",
        "measure",
        "vectors.edge",
    ),
    *("source.torch_export", "source.torch_forward", "source.checkpoint", "runtime.tflite_file"),
}
"""Who runs code of users, plug-ins or clients or answers for a process; and the readers with a map of their own."""


def catch_alls(module: Module) -> list[str]:
    """What a foreign library raises is named in foreign.py, once a library."""
    parts = module.name.split(".")
    if {".".join(parts[:n]) for n in range(1, len(parts) + 1)} & ANYTHING_GOES:
        return []
    handlers = [n for n in ast.walk(module.tree) if isinstance(n, ast.ExceptHandler)]
    return [module.at(n) for n in handlers if n.type is None or dotted(n.type) == "Exception"]


BANS: dict[Callable[[Module], list[str]], str] = {
    prints: "def f():\n    print(1)\n",
    exits: "import sys\ndef f():\n    sys.exit(1)\n",
    asserts: "def f(path):\n    assert path.exists()\n",
    shells: "subprocess.run('ls', shell=True)\n",
    pickles: "def f():\n    import pickle\n",
    untyped: "def f(x, *y: int) -> None: ...\n",
    catch_alls: "def f() -> None:\n    try:\n        g()\n    except Exception:\n        pass\n",
    second_openers: "def f():\n    return onnxruntime.InferenceSession('x')\n",
}


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.__name__)
def test_nobody_does_it(ban):
    assert [line for m in modules() for line in ban(m)] == [], ban.__doc__


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.__name__)
def test_the_ban_sees_it(ban):
    text = BANS[ban]
    assert len(ban(Module(SOURCE / "runtime" / "x.py", text, ast.parse(text)))) == 1


def in_place(module: Module) -> list[str]:
    """Returns where a module writes to a file in its place: a full disk would destroy what was there."""
    calls = [n for n in ast.walk(module.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    named = [n for n in calls if n.func.attr in ("write_text", "write_bytes", "copyfile", "copy2")]
    opening = [n for n in calls if n.func.attr == "open"]
    opened = [n for n in opening if any(isinstance(a, ast.Constant) and str(a.value)[:1] in "wax" for a in n.args)]
    return [module.at(n) for n in named + opened]


def test_verbs_write_through_files():
    scratch = {"cli.firmware", "cli.main"}  # a new folder that is moved in as a whole; /dev/null
    assert [line for m in modules() if m.top == "cli" and m.name not in scratch for line in in_place(m)] == []
    text = "path.write_text('x')\npath.open('wb')\npath.open()\npath.open('rb')\n"
    assert len(in_place(Module(SOURCE / "cli" / "x.py", text, ast.parse(text)))) == 2


def test_what_is_allowed_is_not_seen():
    text = "assert x is not None\nassert a is not None and b.c is not None\nnp.load(p, allow_pickle=False)\n"
    text += "try:\n    f()\nexcept SystemExit:\n    pass\nassert isinstance(a, int)\n"
    module = Module(SOURCE / "runtime" / "x.py", text, ast.parse(text))
    assert [ban(module) for ban in BANS] == [[]] * len(BANS)
