"""Who may use the NPU: the driver lets everybody (mode 0666), a udev rule only a group."""

from __future__ import annotations

import re

from anynpu.drivers.plan import Step
from anynpu.drivers.root import Root
from anynpu.errors import ConfigError

RULE = "/etc/udev/rules.d/70-anynpu-aipu.rules"
GROUP = "render"


def rule(group: str) -> str:
    """Returns the rule: /dev/aipu for root and one group."""
    return (
        "# Written by anynpu: the driver makes /dev/aipu with mode 0666, for every local user.\n"
        f'SUBSYSTEM=="misc", KERNEL=="aipu", GROUP="{group}", MODE="0660"\n'
    )


def groups(root: Root) -> dict[str, tuple[str, ...]]:
    """Returns the machine's groups with their members."""
    rows = [line.split(":") for line in root.read("/etc/group").splitlines()]
    return {row[0]: tuple(name for name in row[3].split(",") if name) for row in rows if len(row) == 4}


def steps(root: Root, group: str, user: str = "") -> list[Step]:
    """Returns what narrows /dev/aipu to a group, which is made where it is missing, and puts the user in it."""
    for flag, name in (("--group", group), ("--user", user)):
        if name and not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", name):
            raise ConfigError(f"{flag} {name}: not a name that Linux accepts")
    admin, known = root.is_host, groups(root)
    prefix = () if admin else ("--prefix", str(root.folder))
    found = []
    if group not in known:
        argv = ("groupadd", *prefix, "--system", group)
        found.append(Step(f"there is no group {group}", argv, needs_root=admin))
    if user and user not in known.get(group, ()):
        argv = ("usermod", *prefix, "-a", "-G", group, user)
        found.append(Step(f"{user} may use the NPU, from the next login on", argv, needs_root=admin))
    why = f"/dev/aipu for root and the group {group} alone"
    found.append(Step(why, write=root.real(RULE), content=rule(group), needs_root=admin))
    return found + reload(root)


def reload(root: Root) -> list[Step]:
    """Returns what makes a changed rule count now; another root has no running udev."""
    if not root.is_host:
        return []
    trigger = ("udevadm", "trigger", "--subsystem-match=misc", "--sysname-match=aipu", "--action=change")
    return [
        Step("udev reads its rules again", ("udevadm", "control", "--reload"), needs_root=True),
        Step("and applies them to the device that is there", trigger, needs_root=True),
    ]


def remove_steps(root: Root) -> list[Step]:
    """Returns what takes our rule away."""
    if not root.exists(RULE):
        return []
    argv = ("rm", "-f", "--", str(root.real(RULE)))
    return [Step("the rule for /dev/aipu; it is open to everybody again", argv, needs_root=root.is_host), *reload(root)]
