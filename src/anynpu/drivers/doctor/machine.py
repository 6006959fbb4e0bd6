"""What checks ask of a machine: its kernel, its user, its Python, modules and packages. All of it comes from files."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anynpu.drivers.detect import Device
from anynpu.drivers.doctor import fixes
from anynpu.drivers.elf_module import KernelModule, read_module
from anynpu.drivers.root import Root
from anynpu.errors import IntegrityError
from anynpu.files import default_cache_dir

PACKED = ("", ".gz", ".xz", ".zst")
PROGRAM_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/bin")


@dataclass(frozen=True)
class User:
    """Who runs this: the ids that the kernel compares with those of a file."""

    uid: int
    groups: frozenset[int]


class Machine:
    """A machine, and the NPU of it that is looked at; `models` are files whose state the user asks for."""

    def __init__(
        self, root: Root, device: Device | None = None, models: tuple[str, ...] = (), cache: Path | None = None
    ) -> None:
        self.root, self.device, self.models, self.cache = root, device, models, cache or default_cache_dir()

    @functools.cached_property
    def release(self) -> str:
        """The running kernel, such as 6.18.9-current-arm64, or an empty string."""
        match = re.match(r"Linux version (\S+)", self.root.read("/proc/version"))
        return self.root.read("/proc/sys/kernel/osrelease") or (match[1] if match else "")

    @functools.cached_property
    def module_name(self) -> str:
        """The driver's module: of the names it has, one that is loaded, else one that is installed, else the first."""
        if self.device is None:
            return ""
        names = (self.device.module, *self.device.other_modules)
        lines = self.root.read("/proc/modules").splitlines()
        loaded = {line.split()[0] for line in lines if line.strip()}
        present = [n for n in names if n in loaded or self.root.exists(f"/sys/module/{n}")]
        present += [n for n in names[1:] if self._is_listed(n) and not self._is_listed(names[0])]
        return (*present, *names)[0]

    def _is_listed(self, name: str) -> bool:
        ending = re.compile(rf"(^|/){re.escape(name).replace('_', '[-_]')}\.ko(\.gz|\.xz|\.zst)?(:|$)", re.MULTILINE)
        lists = (self.root.read(f"{self.modules}/{file}") for file in ("modules.dep", "modules.builtin"))
        return any(ending.search(line.partition(" ")[0]) for text in lists for line in text.splitlines())

    @functools.cached_property
    def comes_with_kernel(self) -> bool:
        """Whether the module is part of the kernel's own package: built into it, or below its folder `kernel`."""
        return self.built_in or self.module_path.startswith(f"{self.modules}/kernel/")

    @functools.cached_property
    def works(self) -> str:
        """The device node that a live driver has made: what is loaded and bound is right, whatever files say."""
        node = next((path for path in self.nodes() if self.root.is_device(path)), "")
        return node if node and (self.built_in or self.module_state == "Live") else ""

    @property
    def is_zhouyi(self) -> bool:
        return self.device is not None and self.device.family == "zhouyi"

    @functools.cached_property
    def modules(self) -> str:
        """The folder with the modules of the running kernel."""
        return f"/lib/modules/{self.release}"

    @functools.cached_property
    def module_path(self) -> str:
        """The module's file for the running kernel: the one that modprobe takes, else any, or an empty string."""
        return self.listed_module or next(self.module_files(self.release), "")

    @functools.cached_property
    def listed_module(self) -> str:
        """The module's file as modules.dep lists it, or an empty string."""
        lines = self.root.read(f"{self.modules}/modules.dep").splitlines()
        paths = (line.partition(":")[0] for line in lines if self._is_module(line.partition(":")[0]))
        return next((f"{self.modules}/{path}" for path in paths if self.root.exists(f"{self.modules}/{path}")), "")

    def module_files(self, release: str) -> Iterator[str]:
        """Yields the module's files for a kernel."""
        return (path for path in self.root.walk(f"/lib/modules/{release}") if self._is_module(path))

    def _is_module(self, path: str) -> bool:
        name = path.rpartition("/")[2].replace("-", "_")
        return name in {f"{self.module_name.replace('-', '_')}.ko{packed}" for packed in PACKED}

    @functools.cached_property
    def module(self) -> KernelModule:
        """What the module says of itself."""
        try:
            return read_module(self.root.read_bytes(self.module_path))
        except IntegrityError as error:
            again = fixes.build(self.has_dkms) if self.is_zhouyi else ""
            raise IntegrityError(f"{self.module_path}: {error.message}", again) from None

    @functools.cached_property
    def dkms_version(self) -> str:
        """The version that DKMS holds of the module, or an empty string."""
        base = f"/var/lib/dkms/{self.module_name}"
        versions = [name for name in self.root.names(base) if self.root.exists(f"{base}/{name}/source")]
        return versions[-1] if versions else ""

    @functools.cached_property
    def has_dkms(self) -> bool:
        """Whether DKMS is installed."""
        return bool(self.dkms_version or self.program("dkms"))

    @functools.cached_property
    def built_in(self) -> bool:
        """Whether the driver is part of the kernel itself."""
        lines = self.root.read(f"{self.modules}/modules.builtin").splitlines()
        return any(self._is_module(line) for line in lines)

    @functools.cached_property
    def module_state(self) -> str:
        """Live, Loading or Unloading as the kernel lists the module, or an empty string."""
        state = self.root.read(f"/sys/module/{self.module_name}/initstate")
        if state:
            return {"live": "Live", "coming": "Loading", "going": "Unloading"}.get(state, state)
        rows = (line.split() for line in self.root.read("/proc/modules").splitlines())
        return next((row[4] for row in rows if len(row) > 4 and row[0] == self.module_name), "")

    @functools.cached_property
    def user(self) -> User:
        """The user that this process runs as."""
        status = dict(line.split(":", 1) for line in self.root.read("/proc/self/status").splitlines() if ":" in line)
        ids = {key: [int(word) for word in status.get(key, "").split()] for key in ("Uid", "Gid", "Groups")}
        if not ids["Uid"]:
            return User(-1, frozenset())
        return User(ids["Uid"][1], frozenset([*ids["Gid"][1:2], *ids["Groups"]]))

    def user_name(self) -> str:
        """Returns the user's name, or an empty string."""
        rows = (line.split(":") for line in self.root.read("/etc/passwd").splitlines())
        return next((row[0] for row in rows if len(row) > 2 and row[2] == str(self.user.uid)), "")

    def group(self, gid: int) -> tuple[str, tuple[str, ...]]:
        """Returns the name of a group and its members."""
        for line in self.root.read("/etc/group").splitlines():
            row = line.split(":")
            if len(row) > 3 and row[2] == str(gid):
                return row[0], tuple(row[3].split(","))
        return str(gid), ()

    @functools.cached_property
    def python(self) -> tuple[int, int]:
        """The version of the Python that runs anynpu; in a folder that looks like a machine, of its python3."""
        return sys.version_info[:2] if self.root.is_host else self.system_python

    @functools.cached_property
    def system_python(self) -> tuple[int, int]:
        """The version of the machine's own python3, (0, 0) where it has none."""
        name = self.root.inside("/usr/bin/python3") if self.root.exists("/usr/bin/python3") else ""
        match = re.search(r"python(\d+)\.(\d+)$", name)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @functools.cached_property
    def package_folders(self) -> tuple[str, ...]:
        """The folders where Python finds packages."""
        folders = [f"{base}/{n}" for base in ("/usr/local/lib", "/usr/lib") for n in self.root.names(base)]
        pythons = [path for path in folders if re.search(r"/python3(\.\d+)?$", path)]
        candidates = [f"{path}/{kind}-packages" for path in pythons for kind in ("dist", "site")]
        own = [path for path in sys.path if path.endswith("-packages")] if self.root.is_host else []
        return tuple(dict.fromkeys(own + [path for path in candidates if self.root.exists(path)]))

    def packages(self, name: str) -> Iterator[tuple[str, str]]:
        """Yields the folder and the version of every installation of a Python package."""
        spelled = "[-_.]".join(re.escape(part) for part in name.split("-"))
        wanted = re.compile(rf"{spelled}-([^-]+)(-py[\d.]+)?\.(dist|egg)-info", re.IGNORECASE)
        for folder in self.package_folders:
            for entry in self.root.names(folder):
                if match := wanted.fullmatch(entry):
                    yield folder, match[1]

    def program(self, name: str) -> str:
        """Returns where a program is, or an empty string."""
        own = tuple(os.environ.get("PATH", "").split(os.pathsep)) if self.root.is_host else ()
        paths = (f"{folder}/{name}" for folder in (*own, *PROGRAM_FOLDERS) if folder.startswith("/"))
        return next((path for path in paths if self.root.is_file(path)), "")

    def nodes(self) -> tuple[str, ...]:
        """Returns the NPU's device nodes; of nodes that several drivers make only those of its own driver."""
        patterns = self.device.nodes if self.device else ()
        every = [
            f"{folder}/{entry}"
            for folder, _, name in (pattern.rpartition("/") for pattern in patterns)
            for entry in self.root.names(folder)
            if fnmatch.fnmatch(entry, name)
        ]
        mine = [path for path in every if self._driver(path).lower() == self.module_name.lower()]
        return tuple(mine or [path for path in every if not self._driver(path)])

    def _driver(self, node: str) -> str:
        """Returns the name of the driver behind a node, where the kernel tells it."""
        name = node.rpartition("/")[2]
        links = (f"/sys/class/{kind}/{name}/device/driver" for kind in ("accel", "drm"))
        return next((self.root.inside(link).rpartition("/")[2] for link in links if self.root.exists(link)), "")
