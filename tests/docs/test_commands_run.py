"""The commands of the docs are executed, page by page in a folder of its own; those that are not say why."""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from small_net import write_net

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md"), ROOT / "README.md"])
CHIPS = "cpu,tflm"
RUN = {
    "README.md": ["anynpu run *", "anynpu compare out/float out/tflm *"],
    "cache.md": ["anynpu cache *"],
    "compare.md": ["anynpu regress", "anynpu regress --add *"],
    "doctor.md": ["anynpu doctor", "anynpu doctor -f json"],
    "eiq.md": ["anynpu tool show eiq"],
    "ethos-u.md": ["anynpu targets *"],
    "plugins.md": ["anynpu targets"],
    "prove.md": ["anynpu run out/tflm -i image.npy*", "anynpu run out/tflm -i random:1", "anynpu compare *"],
    "quantize.md": ["anynpu show out/tflm --quantisation"],
    "report.md": ["anynpu report *", "anynpu bench *"],
    "researcher.md": ["anynpu *"],
    "single-board.md": [
        "anynpu doctor",
        "anynpu check *",
        "anynpu targets *",
        "anynpu * out/cpu *",
        "anynpu build *",
        "anynpu tool show *",
    ],
    "microcontroller.md": ["anynpu *", "make -C firmware check"],
    "toolchains.md": ["anynpu tool list", "anynpu tool show *"],
    "watch.md": ["anynpu watch agent --show"],
    "zhouyi.md": ["anynpu hub list", "anynpu hub show *"],
}
"""What is executed, in the order of the page."""
STATUS = {
    "anynpu doctor": (0, 1, 4),
    "anynpu doctor -f json": (0, 1, 4),
    "anynpu report broken.json": (2,),
    "anynpu cache clear": (2,),  # nobody is there to say yes
    "anynpu cache clear --npu": (2,),
    "anynpu build -m zoo:hello -t cpu,rk3588 -o board": (0, 4),  # the vendor's compiler may be here
}
"""Commands that say something of this machine, or show an error."""
LEFT = {
    "*http://*": "needs a server",
    "anynpu serve *": "serves until it is interrupted; tests/apps/serve starts it",
    "anynpu search *": "needs models of the user's; tests/apps/search runs it",
    "anynpu watch detect *": "serves until it is interrupted; tests/apps/watch starts it",
    "anynpu watch agent --collector *": "runs until it is interrupted; tests/apps/watch starts it",
    "anynpu watch simulate *": "days of a fleet take seconds; tests/apps/watch runs fewer",
    "anynpu watch replay *": "days of a fleet take seconds; tests/apps/watch runs fewer",
    "anynpu deploy *": "needs a probe and a board",
    "*--on serial:*": "needs a board",
    "*--on qemu*": "needs QEMU; tests/firmware/project runs it",
    "*--on host*": "compiles a firmware; tests/firmware/project runs it",
    "anynpu driver *": "needs the driver's source; `make test-driver` runs it",
    "anynpu tool install *": "downloads a vendor's tool",
    "anynpu tool verify *": "needs a vendor's tool",
    "anynpu tool remove *": "needs a vendor's tool",
    "anynpu hub get *": "downloads a model",
    "anynpu demo *": "tests/toolchain/ryzen runs it",
    "*.cix*": "needs a compiled model of the vendor's; tests/toolchain/zhouyi runs generated ones",
    "*zhouyi*": "needs a vendor's tool; tests/toolchain/zhouyi runs it on a fake",
    "*cv180x*": "needs a vendor's tool; tests/toolchain/cvi runs it on a fake",
    "*mcxn947*": "needs a vendor's tool; tests/toolchain/eiq runs it on a fake",
    "*max78000*": "needs a vendor's tool; tests/toolchain/ai8x runs it on a fake",
    "*hexagon*": "needs a vendor's tool; tests/toolchain/qnn runs it on a fake",
    "*snapdragon*": "needs a vendor's tool; tests/toolchain/qnn runs it on a fake",
    "*rk3588*": "needs a vendor's tool; tests/toolchain/rknn runs it on a fake",
    "*ryzen-ai*": "needs a vendor's tool; tests/toolchain/ryzen runs it on a fake",
    "*toychip*": "needs the page's own package; tests/conformance/plugin installs it",
    "anynpu regress --against *": "needs results of that version of Vela",
    "anynpu sweep *": "a minute of builds; tests of sweep run smaller ones",
    "*zoo:*": "half a minute; tests/congruence builds the zoo",
    "anynpu build *": "a build takes seconds: one is shared by all pages, and tests/cli builds with every flag",
    "anynpu firmware *": "the build before it is not run",
    "make -C *": "the build before it is not run; tests/firmware/project makes every tree",
    "anynpu bisect *": "needs two executions that disagree; tests/congruence/bisect makes some",
    "anynpu bench *": "measures for seconds; tests/cli/test_bench_verb.py runs every scenario",
    "anynpu compare *--time*": "measures for seconds; tests/cli/test_compare_verb.py runs it",
    "anynpu compare *": "needs the user's own records",
    "anynpu eval *": "needs labelled data; tests/apps/tasks/test_eval_verb.py runs it",
    "anynpu detect *": "needs a detector; tests/apps/tasks/test_detect_verb.py runs one",
    "anynpu embed *": "needs a tower; tests/apps/tasks/test_embed_verb.py runs one",
    "anynpu similar *": "needs a tower; tests/apps/tasks/test_embed_verb.py runs one",
    "anynpu classify *": "needs a tower; tests/apps/tasks/test_embed_verb.py runs one",
    "anynpu unpu-bench*": "tests/cli/unpu_bench runs it",
    "anynpu doctor *": "needs a file or a tree of another machine, or is the same with more lines",
    "anynpu diagnose *": "seconds for each chip; tests/congruence/diagnosis runs it",
    "*photo.jpg*": "needs a model that was built with its preprocessing",
    "anynpu show *": "needs a model of the user's, or a chip that is not built here",
    "anynpu check *": "seconds for each chip; tests/apps/api and tests/cli check",
}
"""Why a command is not executed here, by its form; the first that fits counts."""


def commands(page: Path) -> list[str]:
    """Returns the command lines in the code blocks of a page, in their order, continued lines joined."""
    lines = []
    for block in re.findall(r"```(?:\w*)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if line.startswith(("anynpu ", "make -C ")) and not line.startswith("anynpu demo --overwrite "):
                lines.append(re.split(r"\s{2,}(?!-)| #", line)[0])
    return lines


def chosen(page: Path) -> list[str]:
    """Returns the commands of a page that are executed."""
    forms = RUN.get(page.name, [])
    return [line for line in dict.fromkeys(commands(page)) if any(fnmatch.fnmatchcase(line, form) for form in forms)]


@pytest.fixture(scope="module")
def files(tmp_path_factory, anywhere) -> Path:
    """The files that the pages speak of: a small network, samples, and what a build makes of them."""
    pytest.importorskip("tflite_micro")
    folder = tmp_path_factory.mktemp("docs")
    rng = np.random.default_rng(0)
    write_net(folder / "net.onnx")
    samples = rng.standard_normal((40, 3, 8, 8)).astype(np.float32)
    for name in ("calib.npz", "calibration.npz", "test.npz"):
        np.savez(folder / name, x=samples)
    np.save(folder / "image.npy", samples[:1])
    (folder / "broken.json").write_text('{"kind": "bench"}\n', "utf-8")
    execute(anywhere, f"anynpu build -m net.onnx -t {CHIPS} --data calib.npz -o out -q", folder)
    return folder


def execute(anywhere, line: str, folder: Path) -> None:
    """Runs one line in a folder and looks at its status; a `>` goes to that file. `cache` gets a cache of its own."""
    if line.startswith("make "):
        done = subprocess.run(shlex.split(line), cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "PASS" in done.stdout, f"{line}\n{done.stdout}{done.stderr}"
        return
    command, _, target = line.partition(" > ")
    own = {"ANYNPU_CACHE_DIR": str(folder / "cache")} if command.startswith("anynpu cache ") else {}
    done = anywhere(*shlex.split(command)[1:], cwd=folder, timeout=1200, HOME=str(folder), **own)
    assert done.returncode in STATUS.get(line, (0,)), f"{line}\n{done.stdout}{done.stderr}"
    if target:
        (folder / target.strip()).write_text(done.stdout, "utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if chosen(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_run_in_turn(page, files, anywhere, tmp_path):
    folder = tmp_path / "page"
    shutil.copytree(files, folder)
    for program in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)[:1]:
        (folder / "net.py").write_text(program, "utf-8")
    for line in chosen(page):
        execute(anywhere, line, folder)


def test_every_other_command_says_why_it_is_not_run():
    others = {line for page in PAGES for line in commands(page)} - {line for page in PAGES for line in chosen(page)}
    unexplained = [line for line in sorted(others) if not any(fnmatch.fnmatchcase(line, form) for form in LEFT)]
    assert not unexplained, "run them, or say in LEFT why not"
    assert all(any(fnmatch.fnmatchcase(line, form) for line in others) for form in LEFT), "a reason without a command"


def test_enough_is_executed():
    assert sum(len(chosen(page)) for page in PAGES) >= 45
