"""Who may use the NPU: the driver lets everybody (mode 0666), a udev rule only a group."""

from __future__ import annotations

import re
from collections.abc import Collection

from anynpu.drivers.plan import Step
from anynpu.drivers.root import Root
from anynpu.errors import ConfigError

RULE = "/etc/udev/rules.d/70-anynpu-aipu.rules"
GROUP = "render"
MADE, JOINED = "# made the group ", "# put into a group: "
NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def rule(group: str, own_groups: Collection[str] = (), joined: Collection[tuple[str, str]] = ()) -> str:
    """Returns the rule, /dev/aipu for root and one group, and what was done for it, so that it can be undone."""
    lines = [
        "# Written by anynpu: the driver makes /dev/aipu with mode 0666, for every local user.",
        *(f"{MADE}{name}" for name in own_groups),
        *(f"{JOINED}{user} {name}" for user, name in joined),
        f'SUBSYSTEM=="misc", KERNEL=="aipu", GROUP="{group}", MODE="0660"',
    ]
    return "\n".join(lines) + "\n"


def _noted(root: Root) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the groups that we made and the users that we put into one, as our rule says."""
    lines = root.read(RULE).splitlines()
    own_groups = [line.removeprefix(MADE) for line in lines if line.startswith(MADE)]
    joined = [line.removeprefix(JOINED).split(" ") for line in lines if line.startswith(JOINED)]
    names = [name for name in own_groups if NAME.fullmatch(name)]
    return names, [(p[0], p[1]) for p in joined if len(p) == 2 and all(NAME.fullmatch(name) for name in p)]


def groups(root: Root) -> dict[str, tuple[str, ...]]:
    """Returns the machine's groups with their members."""
    rows = [line.split(":") for line in root.read("/etc/group").splitlines()]
    return {row[0]: tuple(name for name in row[3].split(",") if name) for row in rows if len(row) == 4}


def steps(root: Root, group: str, user: str = "") -> list[Step]:
    """Returns what narrows /dev/aipu to a group, which is made where it is missing, and puts the user in it."""
    for flag, name in (("--group", group), ("--user", user)):
        if name and not NAME.fullmatch(name):
            raise ConfigError(f"{flag} {name}: not a name that Linux accepts")
    users = {line.partition(":")[0] for line in root.read("/etc/passwd").splitlines()}
    if user and user not in users:
        raise ConfigError(f"--user {user}: this machine knows no such user")
    admin, present = root.is_host, groups(root)
    prefix = () if admin else ("--prefix", str(root.folder))
    own_groups, joined = _noted(root)
    plan = []
    if group not in present:
        argv = ("groupadd", *prefix, "--system", group)
        plan.append(Step(f"there is no group {group}", argv, needs_root=admin))
        own_groups.append(group)
    if user and user not in present.get(group, ()):
        argv = ("usermod", *prefix, "-a", "-G", group, user)
        plan.append(Step(f"{user} may use the NPU, from the next login on", argv, needs_root=admin))
        joined.append((user, group))
    why = f"/dev/aipu for root and the group {group} alone"
    plan.append(Step(why, write=root.real(RULE), content=rule(group, own_groups, joined), needs_root=admin))
    return plan + reload(root)


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
    """Returns what takes our rule away, and the group and memberships that came with it."""
    if not root.exists(RULE):
        return []
    admin, (own_groups, joined) = root.is_host, _noted(root)
    prefix, inside = ((), ()) if admin else (("--prefix", str(root.folder)), ("-Q", str(root.folder)))
    present = groups(root)
    plan = [
        Step(f"{user} leaves the group {name}", ("gpasswd", *inside, "-d", user, name), needs_root=admin)
        for user, name in joined
        if user in present.get(name, ()) and name not in own_groups
    ]
    plan += [
        Step(f"the group {name}, which we made", ("groupdel", *prefix, name), needs_root=admin)
        for name in own_groups
        if name in present
    ]
    argv = ("rm", "-f", "--", str(root.real(RULE)))
    plan.append(Step("the rule for /dev/aipu; it is open to everybody again", argv, needs_root=admin))
    return plan + reload(root)
