"""What the kit does to a machine: DKMS, udev, packages, signatures and the module, on folders that look like one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from small_driver import by_hand, write_tree

from anynpu.drivers import plan
from anynpu.drivers.elf_module import KernelModule
from anynpu.drivers.plan import Step
from anynpu.drivers.root import Root
from anynpu.drivers.zhouyi import build, dkms, install, kernel, signing, tree, udev, userspace, verify
from anynpu.errors import ConfigError, IntegrityError, ToolFailed, ToolMissing

POSTINST = "#!/bin/sh\nset -e\n\n# pip3 install nothing\npip3 install /no/such.whl --break\n\nexit 0\n"
RELEASE = "6.12.1-arm64"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    folder = tmp_path / "root"
    for name in ("etc/ld.so.conf.d", "var/lib/dpkg/info", "var/lib/dpkg/updates", "lib/modules", "usr/src"):
        (folder / name).mkdir(parents=True)
    (folder / "var/lib/dpkg/status").touch()
    (folder / "etc/group").write_text("root:x:0:\nrender:x:105:\n")
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n")
    return Root(folder)


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    folder = tmp_path / "headers"
    (folder / "include/generated").mkdir(parents=True)
    (folder / "Makefile").write_text("modules:\n")
    (folder / ".config").write_text("CONFIG_ARM64=y\n")
    (folder / "include/generated/utsrelease.h").write_text(f'#define UTS_RELEASE "{RELEASE}"\n')
    return folder


@pytest.fixture
def patched(tmp_path: Path) -> tree.Tree:
    folder = write_tree(tmp_path / "driver")
    tree.write(tree.patched(tree.recognise(folder)))
    return tree.recognise(folder)


def do(steps: list[Step], tmp_path: Path) -> list[str]:
    """Runs steps and returns what was told, before each."""
    told: list[str] = []
    plan.run(steps, log=tmp_path / "log", tell=lambda _, step: told.append(step.command()), again="")
    return told


def program(path: Path, says: str, status: int) -> None:
    """Writes a program that says one line and ends."""
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)


class TestPlan:
    def test_a_step_is_told_before_it_runs_and_the_first_failure_ends_the_run(self, tmp_path):
        seen = []
        steps = [
            Step("one", write=tmp_path / "a/one", content="1\n"),
            Step("two", ("false",)),
            Step("three", write=tmp_path / "three", content="3\n"),
        ]
        with pytest.raises(ToolFailed):
            plan.run(
                steps,
                log=tmp_path / "log",
                tell=lambda n, s: seen.append((n, (tmp_path / "a/one").exists())),
                again="",
            )
        assert seen == [(1, False), (2, True)] and not (tmp_path / "three").exists()

    def test_root_steps_are_refused_before_the_first_one_runs(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        steps = [Step("a", write=tmp_path / "a", content="x"), Step("b", ("true",), needs_root=True)]
        with pytest.raises(ConfigError, match="1 of 2 steps need root") as error:
            plan.run(steps, log=tmp_path / "log", tell=lambda n, s: None, again="sudo it")
        assert error.value.hint == "sudo it" and not (tmp_path / "a").exists()

    def test_commands_are_quoted(self):
        assert Step("x", ("rm", "a b")).command() == "rm 'a b'"
        assert Step("by hand").by_hand and not Step("x", ("true",)).by_hand


class TestKernel:
    def test_headers_say_release_and_version(self, headers):
        found = kernel.find(headers, arch="arm64", cross="aarch64-linux-gnu-", compiler="cc-9")
        assert (found.release, found.version) == (RELEASE, (6, 12))
        assert found.make(Path("/t"), "modules")[:6] == (
            *("make", "-C", str(headers), "M=/t", "ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"),
        )
        assert "CC=cc-9" in found.make(Path("/t"), "modules")

    def test_missing_headers_say_what_to_install(self, root):
        with pytest.raises(ToolMissing, match=r"no headers for kernel 6\.9-x") as error:
            kernel.find(None, release="6.9-x", cross="x-", root=root)
        assert "apt install linux-headers-6.9-x" in error.value.hint

    def test_headers_of_another_processor_are_refused(self, headers):
        (headers / ".config").write_text("CONFIG_X86_64=y\n# CONFIG_ARM64=y is a comment\n")
        with pytest.raises(ConfigError, match="another processor"):
            kernel.find(headers, cross="x-")

    def test_another_machine_needs_a_cross_compiler(self, headers, monkeypatch):
        monkeypatch.setattr(kernel, "machine", lambda: "x86_64")
        with pytest.raises(ConfigError, match="cross compiler"):
            kernel.find(headers)
        monkeypatch.setattr(kernel, "machine", lambda: "aarch64")
        assert kernel.find(headers).cross == ""

    def test_other_architectures_and_folders_are_refused(self, headers, tmp_path):
        with pytest.raises(ConfigError, match="--arch x86"):
            kernel.find(headers, arch="x86")
        with pytest.raises(ConfigError, match="no kernel headers"):
            kernel.find(tmp_path / "none", cross="x-")


class TestDkms:
    def test_conf_installs_itself_and_passes_nothing_that_nobody_reads(self):
        text = dkms.conf("5.11.0")
        assert 'AUTOINSTALL="yes"\n' in text and 'DEST_MODULE_LOCATION[0]="/updates/dkms"\n' in text
        assert 'MAKE[0]="make -C ${kernel_source_dir} M=${dkms_tree}/aipu/5.11.0/build modules"\n' in text
        assert 'CLEAN="make -C ${kernel_source_dir} M=${dkms_tree}/aipu/5.11.0/build clean"\n' in text
        assert "BUILD_" not in text and "CROSS" not in text and "STRIP" not in text

    def test_an_unpatched_tree_is_refused(self, tmp_path, root, headers):
        found = kernel.find(headers, cross="x-")
        for folder in (write_tree(tmp_path / "fresh"), by_hand(write_tree(tmp_path / "hand"))):
            with pytest.raises(ConfigError, match="DKMS would build"):
                dkms.steps(tree.recognise(folder), found, root)

    def test_steps_stay_inside_the_root_and_a_known_version_is_replaced(self, patched, root, headers):
        found = kernel.find(headers, cross="x-")
        steps = dkms.steps(patched, found, root)
        assert not any(step.needs_root for step in steps)
        words = [step.argv[:2] for step in steps if step.argv[:1] == ("dkms",)]
        assert words == [("dkms", "add"), ("dkms", "build"), ("dkms", "install")]
        assert all(str(root.folder) in " ".join(s.argv) for s in steps if s.argv and s.argv[0] == "dkms")
        (root.folder / "var/lib/dkms/aipu/5.11.0").mkdir(parents=True)
        (root.folder / "usr/src/aipu-5.11.0").mkdir()
        again = [step.argv[:2] for step in dkms.steps(patched, found, root) if step.argv]
        assert again[:2] == [("dkms", "remove"), ("rm", "-rf")]

    def test_on_the_machine_itself_every_step_needs_root(self, patched, headers, monkeypatch):
        monkeypatch.setattr(kernel, "machine", lambda: "aarch64")
        steps = dkms.steps(patched, kernel.find(headers), Root())
        assert all(step.needs_root for step in steps)
        build_it = next(step for step in steps if step.argv[:2] == ("dkms", "build"))
        assert build_it.argv == ("dkms", "build", "aipu/5.11.0", "-k", RELEASE)


class TestUdev:
    def test_the_rule_narrows_the_device_to_a_group(self, root, tmp_path):
        do(udev.steps(root, "render"), tmp_path)
        text = (root.folder / udev.RULE[1:]).read_text()
        assert 'SUBSYSTEM=="misc", KERNEL=="aipu", GROUP="render", MODE="0660"\n' in text

    @pytest.mark.skipif(not shutil.which("groupadd"), reason="needs groupadd")
    @pytest.mark.skipif(os.geteuid() != 0, reason="groupadd wants root even for another root")
    def test_a_group_that_is_made_is_taken_away_again(self, root, tmp_path):
        before = {name: (root.folder / "etc" / name).read_text() for name in ("group", "passwd")}
        steps = udev.steps(root, "npu", "alice")
        assert [step.argv[:1] for step in steps] == [("groupadd",), ("usermod",), ()]
        do(steps, tmp_path)
        assert udev.groups(root)["npu"] == ("alice",)
        assert [step.argv for step in udev.steps(root, "npu", "alice") if step.argv] == []
        do(udev.steps(root, "npu"), tmp_path)  # again: what was done for it is still known
        do(udev.remove_steps(root), tmp_path)
        assert {name: (root.folder / "etc" / name).read_text() for name in before} == before
        assert udev.remove_steps(root) == []

    @pytest.mark.parametrize(
        ("group", "user"), [('x", RUN+="rm', ""), ("Render", ""), ("render", "-x"), ("render", "bob")]
    )
    def test_bad_names_and_unknown_users_are_refused(self, root, group, user):
        with pytest.raises(ConfigError, match=r"--group|--user"):
            udev.steps(root, group, user)


class TestUserspace:
    def test_pip_lines_are_excused_once_and_accused_again(self):
        once = userspace.excused(POSTINST)
        assert userspace.excused(once) == once and userspace.accused(once) == POSTINST
        assert once.count("|| true") == 1 and "# pip3 install nothing\n" in once

    def status(self, root: Root, state: str) -> None:
        (root.folder / "var/lib/dpkg/status").write_text(
            "Package: other\nStatus: install ok installed\n\n"
            f"Package: cix-noe-umd\nStatus: install ok {state}\nVersion: 2\n"
        )
        (root.folder / userspace.POSTINST[1:]).write_text(POSTINST)
        (root.folder / "usr/share/cix/lib").mkdir(parents=True, exist_ok=True)

    def test_only_a_broken_package_is_repaired(self, root):
        assert userspace.steps(root, None) == []
        self.status(root, "installed")
        (root.folder / "etc/ld.so.conf.d/cix.conf").write_text("/usr/share/cix/lib\n")
        assert userspace.steps(root, None) == []
        self.status(root, "half-configured")
        write, configure = userspace.steps(root, None)
        assert write.write == root.folder / userspace.POSTINST[1:] and "|| true" in write.content
        assert configure.argv[-2:] == ("--configure", "cix-noe-umd")

    def test_the_linker_gets_its_entry_where_it_has_none(self, root):
        self.status(root, "installed")
        write, ldconfig = userspace.steps(root, None)
        assert write.content == "/usr/share/cix/lib\n" and ldconfig.argv[0] == "ldconfig"

    def test_a_package_file_that_is_not_there_is_refused(self, root, tmp_path):
        with pytest.raises(ConfigError, match="no such file"):
            userspace.steps(root, tmp_path / "x.deb")

    @pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg")
    def test_dpkg_itself_is_satisfied_after_the_repair(self, root, tmp_path, pip_that_refuses):
        package = self.package(tmp_path)
        dpkg = userspace.steps(root, package)[0].argv[:-2]
        subprocess.run([*dpkg, "-i", str(package)], capture_output=True)
        assert userspace.package_state(root) == "half-configured"
        repair = [step for step in userspace.steps(root, None) if step.argv[:1] != ("ldconfig",)]
        do(repair, tmp_path)
        assert userspace.package_state(root) == "installed"
        undo = [step for step in userspace.remove_steps(root) if step.argv[:1] != ("ldconfig",)]
        do(undo, tmp_path)
        assert (root.folder / userspace.POSTINST[1:]).read_text() == POSTINST
        assert not root.exists(userspace.LINKER_FILE)

    @pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg")
    def test_a_fresh_package_installs_without_a_failing_step(self, root, tmp_path, pip_that_refuses):
        steps = userspace.steps(root, self.package(tmp_path))
        do([step for step in steps if step.argv[:1] != ("ldconfig",)], tmp_path)
        assert userspace.package_state(root) == "installed"
        assert (root.folder / userspace.POSTINST[1:]).read_text() == userspace.excused(POSTINST)

    @pytest.fixture
    def pip_that_refuses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program(tmp_path / "bin/pip3", "ERROR: this wheel is for another Python", 1)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def package(self, tmp_path: Path) -> Path:
        """Builds a package of our own whose script fails the way that the vendor's does."""
        folder = tmp_path / "package"
        (folder / "DEBIAN").mkdir(parents=True)
        (folder / "DEBIAN/control").write_text(
            "Package: cix-noe-umd\nVersion: 2\nArchitecture: all\nMaintainer: x <x@x>\nDescription: own\n"
        )
        (folder / "DEBIAN/postinst").write_text(POSTINST)
        (folder / "DEBIAN/postinst").chmod(0o755)
        (folder / "usr/share/cix/lib").mkdir(parents=True)
        (folder / "usr/share/cix/lib/libnoe.so.0").write_text("own\n")
        subprocess.run(["dpkg-deb", "-b", str(folder), str(tmp_path / "own.deb")], check=True, capture_output=True)
        return tmp_path / "own.deb"


class TestSigning:
    def test_nothing_is_signed_in_silence(self, headers, tmp_path):
        found = kernel.find(headers, cross="x-")
        assert signing.steps(tmp_path / "aipu.ko", found, None, None, secure=False) == []
        (only,) = signing.steps(tmp_path / "aipu.ko", found, None, None, secure=True)
        assert only.by_hand and "Secure Boot is on" in only.why and "--key" in only.why

    def test_the_users_key_signs(self, headers, tmp_path):
        found = kernel.find(headers, cross="x-")
        key, certificate = tmp_path / "k", tmp_path / "c"
        with pytest.raises(ConfigError, match="go together"):
            signing.steps(tmp_path / "aipu.ko", found, key, None, secure=True)
        with pytest.raises(ConfigError, match="no such file"):
            signing.steps(tmp_path / "aipu.ko", found, key, certificate, secure=True)
        key.touch(), certificate.touch()
        sign, enrol = signing.steps(tmp_path / "aipu.ko", found, key, certificate, secure=True)
        assert sign.argv == (
            f"{headers}/scripts/sign-file",
            "sha256",
            str(key),
            str(certificate),
            f"{tmp_path}/aipu.ko",
        )
        assert enrol.by_hand and "mokutil --import" in enrol.why

    @pytest.mark.parametrize(
        ("said", "status", "on"),
        [
            ("SecureBoot enabled", 0, True),
            ("SecureBoot disabled", 0, False),
            ("EFI variables are not supported", 1, False),
        ],
    )
    def test_mokutil_is_believed(self, tmp_path, monkeypatch, said, status, on):
        program(tmp_path / "bin/mokutil", said, status)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        assert signing.secure_boot() is on


GOOD = (("license", "GPL v2"), ("import_ns", "DMA_BUF"), ("alias", "acpi*:CIXH4000:*"), ("vermagic", f"{RELEASE} SMP"))


def module(
    info: tuple[tuple[str, str], ...] = GOOD, symbols: tuple[str, ...] = ("init_module",), machine: str = "aarch64"
) -> KernelModule:
    return KernelModule(info, frozenset(symbols), machine, False)


class TestVerify:
    def failed(self, found: KernelModule) -> list[str]:
        return [check.name for check in verify.checks(found, RELEASE) if not check.ok]

    def test_each_fault_is_named(self):
        assert self.failed(module()) == []
        assert self.failed(module(symbols=())) == ["init_module"]
        assert self.failed(module(machine="x86-64")) == ["processor"]
        assert self.failed(module(GOOD[1:])) == ["licence"]
        assert self.failed(module((*GOOD, ("import_ns", "DMA_BUF")))) == ["import_ns"]
        assert self.failed(module((*GOOD[:1], ("import_ns", '"DMA_BUF"'), *GOOD[2:]))) == ["import_ns"]
        assert self.failed(module((*GOOD[:2], *GOOD[3:]))) == ["alias"]
        assert self.failed(module((*GOOD[:3], ("vermagic", "6.12.2-arm64 SMP")))) == ["vermagic"]
        assert "vermagic" not in [check.name for check in verify.checks(module())]

    def test_damaged_and_missing_modules(self, tmp_path):
        with pytest.raises(ConfigError, match=r"no aipu\.ko"):
            verify.find(tmp_path)
        (tmp_path / "aipu.ko.xz").write_bytes(b"no module")
        assert verify.find(tmp_path).name == "aipu.ko.xz"
        with pytest.raises(IntegrityError, match=r"aipu\.ko\.xz"):
            verify.read(verify.find(tmp_path))

    def test_installed_modules_are_found_wherever_they_are(self, root):
        for name in ("6.1/updates/dkms/aipu.ko.xz", "6.1/updates/other.ko", "7.0/extra/aipu.ko", "7.0/kernel/aipu.ko"):
            path = root.folder / "lib/modules" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        assert verify.installed(root) == ("/lib/modules/6.1/updates/dkms/aipu.ko.xz", "/lib/modules/7.0/extra/aipu.ko")
        assert verify.installed(root, "7.0") == ("/lib/modules/7.0/extra/aipu.ko",)


class TestInstall:
    def test_a_module_is_installed_and_removed(self, root, headers, tmp_path):
        (tmp_path / "aipu.ko").write_bytes(b"x")
        steps = [
            s
            for s in install.steps(tmp_path / "aipu.ko", kernel.find(headers, cross="x-"), root)
            if s.argv[0] != "depmod"
        ]
        before = sorted(root.walk("/"))
        do(steps, tmp_path)
        assert (root.folder / f"lib/modules/{RELEASE}/updates/aipu.ko").read_bytes() == b"x"
        removal = install.remove_steps(root)
        assert [step.argv[0] for step in removal] == ["rm", "depmod"]
        do(removal[:1], tmp_path)
        assert sorted(root.walk("/")) == before and install.remove_steps(root) == []

    def test_another_root_is_never_loaded_into_this_kernel(self, root, headers, monkeypatch):
        monkeypatch.setattr(install, "running", lambda: RELEASE)
        found = kernel.find(headers, cross="x-")
        assert "modprobe" not in [s.argv[0] for s in install.steps(Path("aipu.ko"), found, root)]
        assert install.steps(Path("aipu.ko"), found, Root())[-1].argv == ("modprobe", "aipu")


COMPLAINTS = {
    "error: implicit declaration of function 'scmi_device_get_freq'": "devfreq",
    "error: initialization of 'void (*)(struct platform_device *)' from incompatible pointer type": "remove",
    "error: expected ',' or ';' before 'DMA_BUF'": "import-ns",
    "error: 'DMA_BUF' undeclared here": "import-ns",
    "modpost: module aipu uses symbol dma_buf_attach from namespace DMA_BUF, but does not import it.": "plain name",
    "error: void value not ignored as it ought to be": "pm-put",
    "error: invalid use of void expression": "pm-put",
    "fatal error: armchina_aipu.h: No such file or directory": "kbuild",
    "/bin/sh: 1: aarch64-linux-gnu-gcc-14: not found": "--cc",
    "gcc: error: unrecognized command-line option '-fmin-function-alignment=8'": "--cc",
    "scripts/basic/fixdep: Exec format error": "linux-kbuild",
}


@pytest.mark.parametrize("line", COMPLAINTS)
def test_a_complaint_of_the_compiler_becomes_a_hint(line):
    assert COMPLAINTS[line] in build.hint_for(f"CC [M] x.o\n{line}\nmake: *** Error 2\n")


def test_the_first_complaint_counts_and_an_unknown_one_has_no_hint():
    lines = list(COMPLAINTS)
    assert "devfreq" in build.hint_for("\n".join(lines)) and "pm-put" in build.hint_for("\n".join(reversed(lines[:6])))
    assert build.hint_for("error: something else") == ""


def test_every_hint_names_something_that_exists():
    named = {name for _, hint in build.HINTS for name in re.findall(r"change '([\w-]+)'", hint)}
    assert named == {"devfreq", "kbuild", "import-ns", "pm-put", "remove"}


def test_a_failed_build_says_why_and_leaves_the_tree_alone(patched, headers, tmp_path):
    (headers / "Makefile").write_text(
        'modules:\n\t@echo "x.c: error: void value not ignored as it ought to be"; exit 1\n'
    )
    before = sorted(patched.folder.rglob("*"))
    with pytest.raises(ToolFailed) as error:
        build.build(patched, kernel.find(headers, cross="x-"), tmp_path / "out")
    assert "pm-put" in error.value.hint and (tmp_path / "out/build.log").is_file()
    assert sorted(patched.folder.rglob("*")) == before


def test_a_tree_patched_by_hand_is_told_to_start_again(headers, tmp_path):
    (headers / "Makefile").write_text("modules:\n\t@echo 'error: incompatible pointer type'; exit 1\n")
    with pytest.raises(ToolFailed) as error:
        found = tree.recognise(by_hand(write_tree(tmp_path / "hand")))
        build.build(found, kernel.find(headers, cross="x-"), tmp_path / "out")
    assert "patched by hand: restore" in error.value.hint and "'remove'" in error.value.hint


def test_a_make_that_makes_nothing_is_a_failure(patched, headers, tmp_path):
    with pytest.raises(ToolFailed, match=r"without aipu\.ko"):
        build.build(patched, kernel.find(headers, cross="x-"), tmp_path / "out")
