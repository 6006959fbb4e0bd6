"""Names with odd characters in units: what systemd reads is what was given."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from anynpu.apps.serve.units import Deployment, systemd_unit
from anynpu.apps.systemd import TOKEN
from anynpu.apps.watch.units import unit
from anynpu.errors import ConfigError

ODD = ("plain", "two words", 'a "quoted" one', "it's", "50%", "$HOME", "back\\slash", "semi;colon", "")


def started(text: str) -> list[str]:
    """The words of ExecStart as systemd takes them: its quoting is the shell's, then %% and $$ are one sign each."""
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(line.removeprefix("ExecStart="))
    return [word if word == TOKEN else word.replace("%%", "%").replace("$$", "$") for word in words]


@pytest.mark.parametrize("token", [None, Path("/etc/a token")])
def test_every_word_comes_back(token):
    end = ["--token-file", TOKEN] if token else []
    deployment = Deployment(Path("/opt/my env/bin/anynpu"), ODD, (Path("/srv/a b:c"),), 8000, token_file=token)
    text = systemd_unit(deployment)
    assert started(text) == ["/opt/my env/bin/anynpu", "serve", *ODD, *end]
    assert "BindReadOnlyPaths=/srv/a\\ b\\:c\n" in text and ("LoadCredential=token:/etc/a token\n" in text) == bool(
        token
    )
    text = unit("agent", Path("/opt/my env/bin/anynpu"), ODD, token)
    assert started(text) == ["/opt/my env/bin/anynpu", "watch", "agent", *ODD, *end]


def test_a_name_that_would_begin_another_line_is_refused():
    for name in ("a\nExecStartPre=x", "a\x00"):
        with pytest.raises(ConfigError, match="a unit cannot hold"):
            unit("agent", Path("/x"), [name], None)
