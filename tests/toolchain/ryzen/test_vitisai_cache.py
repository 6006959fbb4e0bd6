"""What the VitisAI provider compiled: kept once it is whole, listed, dropped."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from anynpu.cli.cache import cache as cache_verbs
from anynpu.errors import ConfigError
from anynpu.runtime.vitisai_cache import CompileCache


@pytest.fixture
def cache(tmp_path):
    return CompileCache(tmp_path / "cache")


def compile_one(cache, key, model="m", size=1000):
    with cache.entry(key, {"chip": "ryzen-ai-stx", "model": model}) as folder:
        (folder / "compiled.xmodel").write_bytes(bytes(size))


def test_what_is_whole_is_kept_and_listed(cache):
    compile_one(cache, "a" * 32)
    (found,) = cache.entries()
    assert (found.key, found.chip, found.about["model"]) == ("a" * 32, "ryzen-ai-stx", "m")
    assert found.size > 1000 and abs(found.used - time.time()) < 60


def test_what_failed_or_was_killed_is_not_reused(cache):
    with pytest.raises(RuntimeError), cache.entry("b", {}) as folder:
        (folder / "half").write_text("half")
        raise RuntimeError
    assert list(cache.entries()) == []
    (cache.folder / "c").mkdir(parents=True)
    (cache.folder / "c" / "half").write_text("a killed compilation")
    assert [found.chip for found in cache.entries()] == [""]
    compile_one(cache, "c")
    assert not (cache.folder / "c" / "half").exists()


def test_a_failure_to_open_it_later_does_not_drop_it(cache):
    compile_one(cache, "d")
    with pytest.raises(RuntimeError), cache.entry("d", {}):
        raise RuntimeError
    assert (cache.folder / "d" / "compiled.xmodel").exists()


def test_one_models_or_all_are_dropped(cache):
    for key, model in (("e", "one"), ("f", "two")):
        compile_one(cache, key, model)
    assert [c.key for c in cache.clear("one")] == ["e"]
    assert [c.key for c in cache.entries()] == ["f"]
    assert [c.key for c in cache.clear()] == ["f"] and list(cache.entries()) == []


def test_the_command_line_lists_and_drops_them(cache, cli):
    compile_one(cache, "0123456789abcdef", size=2048)
    given = {"ANYNPU_CACHE_DIR": str(cache.cache)}
    listed = cli("cache", "ls", **given)
    assert "compiled for the NPU of this machine" in listed.stdout and "0123456789ab" in listed.stdout
    assert "1 compiled for an NPU" in listed.stderr
    (row,) = json.loads(cli("cache", "ls", "-f", "json", **given).stdout)["compiled"]
    assert row["chip"] == "ryzen-ai-stx"
    dropped = json.loads(cli("cache", "clear", "--npu", "--yes", "-f", "json", **given).stdout)
    assert dropped["compiled"] == 1 and dropped["steps"] == 0 and list(cache.entries()) == []


@pytest.mark.parametrize(
    "words", [("--older-than", "-1"), ("--max-size", "-5M"), ("--max-size", "1e400M"), ("--max-size", "5X")]
)
def test_a_limit_that_is_none_removes_nothing(cache, words):
    compile_one(cache, "a" * 32)
    done = CliRunner().invoke(cache_verbs, ["prune", *words, "--cache-dir", str(cache.cache)])
    assert isinstance(done.exception, ConfigError | SystemExit) and done.exit_code in (1, 2), done.output
    assert len(list(cache.entries())) == 1


def test_clear_asks_for_all_that_it_drops(cache):
    compile_one(cache, "a" * 32)
    done = CliRunner().invoke(cache_verbs, ["clear", "--cache-dir", str(cache.cache)], input="n\n")
    assert "drop 0 steps and 1 compiled models from" in done.exception.message
    assert len(list(cache.entries())) == 1
