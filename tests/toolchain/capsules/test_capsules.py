"""A capsule is there whole or not at all, is found damaged when it is, and goes away without a trace."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from anynpu.artifact import hash_file
from anynpu.capsules import toolchain
from anynpu.capsules.capsule import FILES, find, home, log_of, read_receipt
from anynpu.capsules.install import PIP_SAYS, agree, install, remove
from anynpu.capsules.python import find_python
from anynpu.capsules.toolchain import hint_in
from anynpu.capsules.verify import listed, verify
from anynpu.errors import ConfigError, IntegrityError, ToolFailed, ToolMissing
from anynpu.files import cache_chosen

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the vendors' tools run on Linux")


def folders(cache: Path) -> list[str]:
    return [p.name for p in home(cache).glob("fake-*")]


@pytest.fixture(scope="module")
def ready(wheels, facts, tmp_path_factory):
    """A capsule that two wanted at once and the tests of this file share: cache folder, name, what was reported."""
    lock = f"# the packages of fake\nfake-tool==1.0 --hash=sha256:{hash_file(next(wheels.glob('*.whl')))}\n"
    cache, lines, name = tmp_path_factory.mktemp("cache"), [], facts(lock=lock, package="fake-tool")
    with ThreadPoolExecutor(2) as pool:
        wanted = [pool.submit(install, name, cache=cache, accept_licence=True, report=lines.append) for _ in range(2)]
    assert len({capsule.result().root for capsule in wanted}) == 1
    return cache, name, lines


def test_of_two_that_install_one_does_and_the_other_waits(ready):
    assert sum("waiting" in line for line in ready[2]) == 1


def test_an_install_mends_probes_and_reports_each_stage(ready, tmp_path):
    cache, name, lines = ready
    capsule = find(name, cache)
    assert capsule.version == "1.0" and capsule.python is not None
    stages = [line.split()[0] for line in lines if "waiting" not in line]
    assert stages == ["environment", "packages", "mending", "mending", "trying", "noting"]
    done = capsule.run(["fake-tool"], cwd=tmp_path, log=tmp_path / "log")
    assert done.output == "fake-tool 1.0 True quiet\n"
    assert capsule.environment()["PATH"].startswith(str(capsule.root / "bin"))
    receipt = read_receipt(capsule.root)
    assert receipt is not None and receipt.packages["fake-tool"] == "1.0"
    assert any(name.endswith("fake_tool/libc.so.6.aside") for name in listed(capsule.root, receipt))


def test_a_second_install_does_nothing_and_asks_nothing(ready):
    cache, name, _ = ready
    done: list[str] = []
    assert install(name, cache=cache, report=done.append).root == find(name, cache).root
    assert done == []


def test_verify_finds_a_sound_capsule_sound_and_a_tampered_one_not(ready, tmp_path):
    cache, name, _ = ready
    sound = verify(name, cache)
    assert sound.complaints == () and sound.files > 100
    package = find(name, cache).installed.packages / "fake_tool"
    shutil.copytree(package, tmp_path / "kept")
    code = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(code.replace("fake-tool 1.0", "fake-tool 66.6"))
    (package / "libc.so.6.aside").unlink()
    told = "\n".join(verify(name, cache).complaints)
    shutil.rmtree(package)
    shutil.copytree(tmp_path / "kept", package)
    assert "__init__.py: changed" in told and "libc.so.6.aside: missing" in told and "did not say" in told
    assert verify(name, cache).complaints == ()


def test_verify_finds_other_versions_and_a_tool_that_hangs(ready, facts):
    cache, name, _ = ready
    info = find(name, cache).installed.packages / "fake_tool-1.0.dist-info"
    info.rename(info.with_name("fake_tool-1.1.dist-info"))
    told = "\n".join(verify(name, cache).complaints)
    info.with_name("fake_tool-1.1.dist-info").rename(info)
    assert "fake-tool 1.0: 1.1 is there instead" in told
    lock = Path(name).with_suffix(".lock").read_text()
    (complaint,) = verify(facts(lock=lock, package="fake-tool", flag=', "--hang"'), cache, timeout_s=2).complaints
    assert "did not finish within 2 s" in complaint


def test_a_changed_list_of_files_is_no_measure(ready, tmp_path):
    cache, name, _ = ready
    root = shutil.copytree(find(name, cache).root, tmp_path / "copy", symlinks=True)
    receipt = read_receipt(root)
    (root / FILES).write_text("{}")
    with pytest.raises(IntegrityError, match=r"files\.json: missing or changed"):
        listed(root, receipt)


def test_the_stand_in_for_torch_does_what_the_compiler_asks_of_it(ready, tmp_path):
    site = find(ready[1], ready[0]).installed.packages
    shutil.copytree(site / "fake_stub", tmp_path / "torch")
    code = (
        "import torch, torch.nn as nn; assert not torch.cuda.is_available() and isinstance(nn.Module, type); "
        "assert type(torch.tensor([1.5]).numpy()).__name__ == 'ndarray' and torch.autograd.Function"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_known_words_become_a_hint(ready, tmp_path):
    cache, name, _ = ready
    harm = find(name, cache).installed.packages / "fake_tool" / "libc.so.6"
    harm.write_text("harm")
    try:
        with pytest.raises(ToolFailed) as caught:
            find(name, cache).run(["fake-tool"], cwd=tmp_path, log=tmp_path / "log")
    finally:
        harm.unlink()
    assert caught.value.hint == "move GLIBC_9.99 aside"
    assert toolchain.hint_for(name, "x: version `GLIBC_2.99' not found") == "move GLIBC_2.99 aside"
    assert toolchain.hint_for(name, "all is well") == ""


def test_a_tool_of_the_usual_cache_serves_a_command_with_another_one_and_not_the_reverse(ready, monkeypatch, tmp_path):
    cache, name, _ = ready
    with cache_chosen(cache):
        root = find(name).root
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path))
    with pytest.raises(ToolMissing, match="not installed"):
        find(name)
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(cache))
    with cache_chosen(tmp_path / "builds"):
        assert find(name).root == find(name, tmp_path).root == root


def test_the_users_own_environment_comes_first(ready, monkeypatch, tmp_path):
    cache, name, _ = ready
    root = find(name, cache).root
    monkeypatch.setenv("FAKE_TOOL_PATH", str(root))
    own = find(name, tmp_path)
    assert (own.root, own.version) == (root, "1.0")
    assert install(name, cache=tmp_path).root == root and not home(tmp_path).exists()
    monkeypatch.setenv("FAKE_TOOL_PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="FAKE_TOOL_PATH"):
        find(name, cache)


def test_the_licence_is_asked_for_once_and_again_when_its_words_change(wheels, facts, tmp_path):
    with pytest.raises(ConfigError, match="licence has not been accepted: yours") as caught:
        install(facts(), cache=tmp_path)
    assert "--accept-licence" in caught.value.hint
    chain = toolchain.read_toolchain(facts())
    agree(chain, tmp_path, True)
    agree(chain, tmp_path, False)
    with pytest.raises(ConfigError, match="theirs"):
        agree(dataclasses.replace(chain, licence="theirs"), tmp_path, False)


def test_several_threads_may_accept_a_licence_at_once(facts, tmp_path):
    chain = toolchain.read_toolchain(facts())
    for turn in range(50):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _, cache=tmp_path / str(turn): agree(chain, cache, True), range(8)))
        assert [p.name for p in (home(tmp_path / str(turn)) / "licences").iterdir()] == [f"{chain.name}.json"]


def test_a_failing_pip_is_explained_and_leaves_only_its_log(wheels, facts, tmp_path):
    name = facts(package="absent==1.0")
    with pytest.raises(ToolFailed, match="fake was not installed: pip failed") as caught:
        install(name, cache=tmp_path, accept_licence=True)
    assert "no absent==1.0" in caught.value.hint
    assert "No matching distribution" in log_of(toolchain.read_toolchain(name), tmp_path).read_text()
    assert folders(tmp_path) == []
    with pytest.raises(ToolMissing) as missing:
        find(name, tmp_path)
    assert missing.value.hint == f"anynpu tool install {name}"


@pytest.fixture(params=["pip", "uv"])
def installer(request, monkeypatch):
    """Installs by uv where it is, and as if it were not there."""
    uv = shutil.which("uv")
    if request.param == "uv" and uv is None:
        pytest.skip("pip install uv")
    if request.param == "pip" and uv is not None:
        monkeypatch.setattr("anynpu.capsules.install.shutil.which", lambda name: None if name == "uv" else name)
    monkeypatch.setenv("UV_NO_INDEX", "1")


def test_an_archive_of_another_digest_is_refused(wheels, facts, tmp_path, installer):
    name = facts(lock=f"fake-tool==1.0 --hash=sha256:{'0' * 64}")
    with pytest.raises(ToolFailed, match="fake was not installed: pip failed") as caught:
        install(name, cache=tmp_path, accept_licence=True)
    assert "a download was damaged" in caught.value.hint and folders(tmp_path) == []


def test_pytorch_without_cuda_has_a_hint_of_its_own():
    hints = [hint_in([saying], "No matching distribution found for torch==2.13.0+cpu") for saying in PIP_SAYS]
    assert [hint.split()[0] for hint in hints if hint] == ["torch==2.13.0+cpu"]
    assert "no numpy==9 for" in hint_in(PIP_SAYS, "No matching distribution found for numpy==9")


def test_a_hanging_pip_is_ended_at_the_limit(silent_index, facts, tmp_path):
    started = time.monotonic()
    with pytest.raises(ToolFailed, match="did not finish") as caught:
        install(facts(), cache=tmp_path, accept_licence=True, timeout_s=10)
    assert "--timeout" in caught.value.hint
    assert time.monotonic() - started < 120 and folders(tmp_path) == []


SCRIPT = "import sys, pathlib; from anynpu.capsules.install import install; \
install(sys.argv[1], cache=pathlib.Path(sys.argv[2]), accept_licence=True)"


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_install_counts_for_nothing_and_takes_pip_with_it(silent_index, facts, tmp_path, blow, monkeypatch):
    name = facts()
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, name, str(tmp_path)], stderr=subprocess.DEVNULL)
    connection, _ = silent_index.accept()  # pip is at work
    process.send_signal(blow)
    process.wait(120)
    connection.settimeout(120)
    while connection.recv(4096):  # ends when pip is gone
        pass
    assert bool(folders(tmp_path)) == (blow == signal.SIGKILL)
    with pytest.raises(ToolMissing):
        find(name, tmp_path)
    if blow == signal.SIGKILL:
        (home(tmp_path) / folders(tmp_path)[0] / "remains").touch()
        with pytest.raises(ToolFailed):
            install(name, cache=tmp_path, timeout_s=1)
    assert folders(tmp_path) == []


def test_remove_takes_everything_of_that_name(ready, tmp_path):
    cache, name, _ = ready
    shutil.copytree(home(cache), home(tmp_path), symlinks=True)
    (home(tmp_path) / "fake-0123456789ab").mkdir()
    (home(tmp_path) / "fake-r-0123456789ab").mkdir()
    find(name, tmp_path)
    assert remove(name, tmp_path) == 2 and folders(tmp_path) == ["fake-r-0123456789ab"]
    assert remove(name, tmp_path) == 0
    with pytest.raises(ToolMissing):
        find(name, tmp_path)


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"python": "3.99"}, ToolMissing, "fake needs Python 3.99"),
        ({"needs": '["no-such-compiler"]'}, ToolMissing, "fake needs no-such-compiler"),
        ({"megabytes": 10**12}, ConfigError, "MB are free"),
    ],
)
def test_what_is_lacking_is_said_before_anything_is_made(wheels, facts, tmp_path, changed, kind, words):
    with pytest.raises(kind, match=words) as caught:
        install(facts(**changed), cache=tmp_path, accept_licence=True)
    assert caught.value.hint and folders(tmp_path) == []


def test_a_python_that_lies_about_its_version_is_passed_over(tmp_path, monkeypatch):
    program = tmp_path / "versions" / "3.98.1" / "bin" / "python3.98"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 3.97.1\necho /bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"Python 3\.98"):
        find_python("3.98", "fake")
    program.write_text("#!/bin/sh\necho 3.98.1\necho /bin/sh\n")
    assert find_python("3.98", "fake").version == "3.98.1"


@pytest.mark.parametrize("name", toolchain.names())
def test_the_facts_that_ship_are_whole(name):
    chain = toolchain.read_toolchain(name)
    assert chain.name == name and chain.licence and chain.get and chain.source and len(chain.recipe) == 64
    assert all("==" in package or "<" in package for package in chain.wanted)
    assert not chain.wanted or (chain.probe and chain.expects and chain.megabytes and chain.minutes)


@pytest.mark.parametrize("name", [name for name in toolchain.names() if toolchain.read_toolchain(name).wanted])
def test_the_lock_that_ships_holds_every_package_of_the_recipe_with_digests(name):
    chain = toolchain.read_toolchain(name)
    lines = [line for line in chain.lock.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)
    versions = dict(line.split()[0].split("==") for line in lines)
    for wish in map(Requirement, chain.wanted):
        assert wish.specifier.contains(versions[canonicalize_name(wish.name)]), wish


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'cixbuild'"):
        toolchain.read_toolchain("cixbuilt")
