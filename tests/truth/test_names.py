"""Names that a terminal or a page would obey, names that are no text, and files that are not what they claim to be."""

from __future__ import annotations

import io
import json
import os
import pty
import struct
import subprocess
import sys
import zipfile
from xml.etree import ElementTree

import numpy as np
import pytest
import report_records as records
from small_net import write_net

from anynpu import arrays
from anynpu.arrays import read_npy, read_npz
from anynpu.cli.main import main
from anynpu.errors import ConfigError, IntegrityError, on_one_line, visible
from anynpu.files import follow_umask
from anynpu.records.load import load
from anynpu.report import junit, markdown
from anynpu.report.html import render as html_of
from anynpu.report.markdown import fenced, plain

ODD = "a\x1b[31mred\x1b]0;title\x07\u202egnp\r\x9b2J\x00\udcff\u200b"
OBEYED = ("\x1b", "\x07", "\u202e", "\r", "\x9b", "\x00", "\u200b")


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Runs the command line in this process; returns its status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYNPU_LEDGER", str(tmp_path / "ledger.jsonl"))

    def run(*arguments):
        status = main([str(each) for each in arguments])
        streams = capsys.readouterr()
        return status, streams.out, streams.err

    return run


def obeyed(text):
    return [each for each in OBEYED if each in text]


@pytest.mark.parametrize("odd", [*OBEYED, "\u2066", "\u2028", "\ufeff", "\ud800", "\U000e0041", "\x7f"])
def test_what_a_terminal_obeys_is_shown(odd):
    assert visible(f"a{odd}b") == "a" + odd.encode("unicode_escape").decode() + "b"
    assert visible("naïve 東京 \U0001f600 \u200d\n\t") == "naïve 東京 \U0001f600 \u200d\n\t"


def test_a_name_begins_no_line_of_its_own():
    assert on_one_line("x\nanynpu: all is well\t") == "x\\nanynpu: all is well\\t"


def test_escapes_in_the_name_of_a_file(call):
    status, _, err = call("show", f"no{ODD.replace(chr(0), '')}\nhint: rm.onnx")
    assert status == 2 and not obeyed(err) and "\\x1b[31m" in err
    assert [line[:7] for line in err.splitlines()] == ["anynpu:", "hint: n"] or len(err.splitlines()) <= 2


def test_escapes_in_the_names_of_a_model(call, tmp_path):
    import onnx

    model = onnx.load_from_string(write_net(tmp_path / "net.onnx").read_bytes())
    model.graph.node[3].output[0] = model.graph.output[0].name = "y\x1b[2J\u202e\nok"
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    status, out, err = call("show", "net.onnx")
    assert status == 0 and not obeyed(out + err) and "y\\x1b[2J\\u202e\\nok" in out
    status, out, _ = call("show", "net.onnx", "-f", "json")
    assert status == 0 and json.loads(out) and out.isascii()


def test_escapes_reach_no_terminal_either(tmp_path):
    """On a real terminal, where colours and bars are drawn."""
    leader, follower = pty.openpty()
    code = "from anynpu.cli.table import print_table as p; from anynpu.cli.terminal import shown_streams as s\n"
    code += "with s(): p([{'name': 'a\\x1b]0;title\\x07\\nb[red]'}], 'x\\x1b[2J')\n"
    subprocess.run([sys.executable, "-c", code], stdout=follower, check=True, env={**os.environ, "TERM": "xterm"})
    os.close(follower)
    seen = os.read(leader, 65536).decode()
    os.close(leader)
    assert "\\x1b]0;title\\x07\\nb[red]" in seen and "\x1b]0;" not in seen and "\x1b[2J" not in seen


def test_a_stream_of_another_encoding(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "anynpu", "show", "no-東京-é.onnx"],
        cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 2 and b"no-\\u6771\\u4eac-\xe9.onnx" in done.stderr and b"Traceback" not in done.stderr


def test_a_name_that_is_no_text(call):
    status, _, err = call("show", os.fsdecode(b"n\xff.onnx"))
    assert status == 2 and "n\\udcff.onnx" in err
    status, _, err = call("show", "n\ud800.onnx")  # what no file can be called
    assert status == 2 and "internal" not in err and "\\ud800" in err


@pytest.mark.parametrize(
    "verb", [("show", "a\0b"), ("run", "a\0b", "-i", "x.npy"), ("report", "a\0b"), ("eval", "a\0b", "--data", "x")]
)
def test_a_name_with_nothing_in_it(call, verb):
    status, _, err = call(*verb)
    assert status == 2 and "internal" not in err and "\0" not in err


def test_a_name_that_is_too_long(call):
    for verb in (
        ("show", "x" * 5000),
        ("report", "x" * 5000 + ".json"),
        ("build", "-m", "x" * 300 + ".onnx", "-t", "cpu", "-o", "o"),
    ):
        status, _, err = call(*verb)
        assert status == 2 and "internal" not in err


def odd_build():
    chips = [records.failed("cpu", message=ODD, last_lines=[ODD, "```"]), records.chip("tflm")]
    return load(records.build(chips, model=ODD + "|`<b>[x](y)\n# h"), "x")


def test_names_in_markdown():
    text = markdown.render(odd_build())
    assert not obeyed(text) and "\n# h" not in text and "<b>" not in text and "[x](" not in text
    assert plain("a|b`c<i>[l](u)\n# __d__ \\| &lt;") == "a\\|b\\`c&lt;i>\\[l\\](u) # \\__d\\__ \\\\\\| &amp;lt;"


def test_a_log_cannot_end_its_block():
    assert fenced(["a", "````", "b"]) == ["`````", "a", "````", "b", "`````"]


def test_names_in_a_page_and_in_junit():
    page, suite = html_of(odd_build()), junit.render(odd_build())
    assert not obeyed(page) and not obeyed(suite) and "<b>[x]" not in page
    ElementTree.fromstring(suite)


def test_folders_follow_the_umask(tmp_path):
    for mask, mode in ((0o077, 0o700), (0o022, 0o755), (0o002, 0o775)):
        before = os.umask(mask)
        try:
            folder = tmp_path / f"{mask:o}"
            folder.mkdir(0o700)
            follow_umask(folder)
        finally:
            os.umask(before)
        assert folder.stat().st_mode & 0o777 == mode


def test_a_build_under_a_private_umask(call, tmp_path):
    write_net(tmp_path / "net.onnx")
    before = os.umask(0o077)
    try:
        status, _, _ = call("build", "-m", "net.onnx", "-t", "null", "-o", "out", "-q")
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o077 for path in (tmp_path / "out", *(tmp_path / "out").rglob("*"))}
    assert status == 0 and not any(modes.values()), modes


def test_nobody_is_asked_where_nobody_can_answer(call, tmp_path, monkeypatch):
    write_net(tmp_path / "net.onnx")
    own = ("--cache-dir", tmp_path / "cache")
    assert call("build", "-m", "net.onnx", "-t", "null", "-o", "out", "-q", *own)[0] == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    status, _, err = call("cache", "clear", *own)
    assert status == 2 and "nobody can answer here" in err and "--yes" in err
    assert "0 steps" not in call("cache", "ls", *own)[2]
    assert call("cache", "clear", "--yes", *own)[0] == 0


def npy(header, data=b"", version=(1, 0)):
    """Returns an .npy file with any header."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H", len(text)) + text + data


def head(shape="(1, 3, 8, 8)", descr="'<f4'", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


BAD_NPY = {
    "huge": (npy(head("(1000000000, 1000000000)")), 8),
    "overflow": (npy(head("(4294967296, 4294967296, 4294967296)")), 8),
    "negative": (npy(head("(-1, 8)"), bytes(64)), 8),
    "cut": (npy(head(), bytes(100)), 8),
    "version": (npy(head(), bytes(768), (9, 0)), 8),
    "no-shape": (npy("{'descr': '<f4'}", bytes(64)), 8),
    "code": (npy("__import__('os').system('true')", bytes(64)), 8),
    "open-bracket": (npy("{'descr': (", bytes(64)), 8),
    "truth-as-side": (npy(head("(True, 8)"), bytes(64)), 8),
    "type": (npy(head(descr="'<f99'"), bytes(64)), 8),
    "objects": (npy(head("(1,)", "'|O'"), bytes(64)), 2),
    "fields": (npy(head("(1,)", "[('a', '<f4'), ('b', '<i2')]"), bytes(64)), 2),
    "dates": (npy(head("(1,)", "'<M8[s]'"), bytes(64)), 2),
    "nothing": (b"", 8),
    "text": (b"1,2,3\n", 8),
}


@pytest.mark.parametrize("name", BAD_NPY)
def test_headers_of_arrays_that_lie(tmp_path, name):
    data, status = BAD_NPY[name]
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises((ConfigError, IntegrityError)) as caught:
        read_npy(tmp_path / "x.npy")
    assert caught.value.exit_status == status
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", data)
    with pytest.raises((ConfigError, IntegrityError)):
        read_npz(tmp_path / "x.npz")


def test_an_archive_that_unpacks_to_more_than_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(1 << 18))
    assert (tmp_path / "x.npz").stat().st_size < 1 << 14 and read_npz(tmp_path / "x.npz")["x"].nbytes == 1 << 21
    monkeypatch.setattr(arrays, "MOST_BYTES", 1 << 20)
    with pytest.raises(ConfigError, match="holds 2 MiB, at most 1 are read"):
        read_npz(tmp_path / "x.npz")


def test_arrays_of_another_order_are_the_same_numbers(tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for odd in (values.astype(">f4"), np.asfortranarray(values)):
        np.save(tmp_path / "x.npy", odd)
        np.savez(tmp_path / "x.npz", x=odd)
        for back in (read_npy(tmp_path / "x.npy"), read_npz(tmp_path / "x.npz")["x"]):
            assert back.dtype == np.float32 and back.dtype.isnative and (back == values).all()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_record_with_numbers_that_json_does_not_have(call, tmp_path, number):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_text(f'{{"format": "onnx", "main": "m", "details": {{"x": {number}}}}}')
    status, _, err = call("show", "a")
    assert status == 8 and "is not a number" in err


FLAGS = [
    ("build", "-m", ".", "-t", "cpu", "-o", "o"), ("build", "-m", "e.onnx", "-t", "cpu", "-o", "o"),
    ("run", "e.onnx", "-i", "e.onnx"), ("show", "e.onnx"), ("show", "e.cix"), ("bench", "e.onnx"),
    ("eval", ".", "--data", "."), ("compare", ".", "e.json"), ("compare", "e.json", "e.json"), ("report", "."),
    ("report", "e.json"), ("regress", "--add", "."), ("regress", "--add", "e.json"), ("regress", "--ledger", "."),
    ("detect", "e.onnx", "."), ("embed", ".", "--text", "x"), ("similar", ".", "--text", "x"), ("classify", ".", "."),
    ("firmware", ".", "-b", "host", "-o", "o"), ("sweep", "-c", ".", "-o", "o"), ("tool", "show", "."),
    ("tool", "show", "e.toml"), ("tool", "verify", "../x"), ("cache", "prune", "--max-size", "9" * 400),
    ("cache", "prune", "--older-than", "nan"),
    ("cache", "ls", "--cache-dir", "e.json"),
    ("build", "-m", "zoo:../x", "-t", "cpu", "-o", "o"), ("build", "-m", ":", "-t", "cpu", "-o", "o"),
    ("build", "-m", "e.py:Net", "-t", "cpu", "-o", "o", "--shape", "x=" + "9" * 400),
    ("build", "-m", "net.onnx", "-t", "cpu", "-o", "o", "--data", "random:" + "9" * 30),
    ("build", "-m", "net.onnx", "-t", "cpu", "-o", "o", "--data", "random:-1"), ("build", "-c", "e.json", "-o", "o"),
    ("bench", "http://[::1", "-n", "1"), ("bench", "http://x:99999/", "-n", "1"),
    ("bench", "http://127.0.0.1:9/\x01", "-n", "1"), ("hub", "show", "\x1b"),
    ("hub", "get", "../x", "-o", "o"),
    ("deploy", "."), ("unpu-bench", "--x"), ("check", "-m", "e.onnx", "-t", "cpu"), ("driver", "zhouyi", "check", "."),
]  # fmt: skip


@pytest.mark.parametrize("arguments", FLAGS, ids=lambda each: " ".join(each).replace("9" * 30, "9")[:60])
def test_flags_that_name_the_wrong_thing(call, tmp_path, arguments):
    for name in ("e.onnx", "e.json", "e.toml", "e.cix", "e.py"):
        (tmp_path / name).write_bytes(b"")
    write_net(tmp_path / "net.onnx")
    status, out, err = call(*arguments)
    assert 2 <= status <= 8 and "internal error" not in err and "Traceback" not in err
    told = [line for line in err.splitlines() if line.startswith("anynpu: ")]
    assert len(told) == 1 or out, (out, err)
