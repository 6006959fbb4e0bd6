"""The root command, and the one place where errors become sentences and exit statuses."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import importlib
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from anynpu import __version__
from anynpu.cli.command import origin_of
from anynpu.cli.terminal import drawn_on, drop, show_error, shown_streams
from anynpu.errors import AnyNpuError, ConfigError, Defect, SuspectWarning, ToolFailed

VERBS = {
    "targets": ("inspect", "List every chip: is its toolchain here, does anything here run it?"),
    "show": ("inspect", "Show a model or an artifact: tensors, operators, cost, fingerprint, lineage."),
    "check": ("inspect", "Ask before compiling: will it fit, will every operator run there?"),
    "build": ("build", "Export, quantise, compile, execute, compare and report, for one or more chips."),
    "diagnose": (
        "diagnose",
        "Show where a build departs from the float model: each tensor's error, its cause, a repair.",
    ),
    "bisect": (
        "bisect",
        "Cut two executions of one model that disagree to the smallest sub-model that still does.",
    ),
    "run": ("run", "Run an artifact on arrays."),
    "eval": ("eval", "Score an artifact on labelled data: classes, boxes, sentence pairs; with intervals."),
    "compare": (
        "compare",
        "Judge two artifacts or benches: outputs, latency, accuracy; better, worse or the same.",
    ),
    "bench": ("bench", "Measure latency you can trust: an artifact, a board or a server."),
    "regress": ("regress", "Keep a ledger of results and report what a new toolchain version made worse."),
    "sweep": ("sweep", "Build every combination of models, chips and options; show which are worth having."),
    "report": ("report", "Write the report of a record: a page, Markdown or JUnit; print the form of records."),
    "detect": ("detect", "Find objects in images, folders, videos and a camera's pictures."),
    "embed": ("embed", "Turn texts or images into vectors."),
    "similar": ("embed", "Show how similar texts and images are: the cosine of every pair."),
    "search": ("search", "Search your own pictures and documents: by words, by a picture, by a text."),
    "classify": ("embed", "Say what is in images, by a classifier's classes or zero-shot by labels in words."),
    "serve": ("serve", "Serve models over HTTP: OpenAI's, TEI's and KServe's forms, metrics, canary, a page."),
    "watch": ("watch", "Watch a fleet: an agent on every machine, one collector that knows what is normal for each."),
    "firmware": ("firmware", "Write a firmware project that builds without editing and proves itself."),
    "deploy": ("deploy", "Put a firmware on a board through a probe or a volume."),
    "hub": ("hub", "Fetch compiled models for the Zhouyi NPU, checked against their cards."),
    "doctor": ("doctor", "Examine this machine: NPU, driver, library, packages; name the first problem and its fix."),
    "driver": ("driver", "Patch, build, install and verify an NPU's kernel driver; every command is shown first."),
    "cache": ("cache", "List, verify, prune or clear the store of built steps."),
    "tool": ("tool", "Install, list, verify or remove vendors' toolchains; list compilers and runtimes."),
    "demo": ("demo", "Build a model that ships with anynpu for six chips; `demo ryzen-ai`: all the way to its NPU."),
}
BY_CHILDREN = ("build", "check", "demo")
"""Verbs that compute in child processes alone."""
INTERRUPTED = 130
_THREADS = "OPENBLAS_NUM_THREADS"


class Verbs(click.Group):
    """A group whose commands are imported when they are called: `anynpu --help` stays fast.

    Packages add verbs of their own through the entry point group `anynpu.verbs`; a name of ours stays ours.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *_plugged()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            if cmd_name not in _plugged():
                return None
            from anynpu import plugins

            plugged = plugins.load("verbs", cmd_name)
            if not isinstance(plugged, click.Command):
                message = f"the verb {cmd_name} of a plug-in is not a click command"
                raise ToolFailed(message, hint="update or remove that package")
            return plugged
        with _without_collections(), _without_threads() if cmd_name in BY_CHILDREN else contextlib.nullcontext():
            module = importlib.import_module(f"anynpu.cli.{VERBS[cmd_name][0]}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, name, None) or getattr(module, f"{name}_")  # eval is Python's
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, help) for name, (_, help) in VERBS.items()])
        if others := _plugged():
            with formatter.section("Verbs of plug-ins"):
                formatter.write_dl(list(others.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-") and args[0] not in _plugged():
            from anynpu.schema import near

            ctx.fail(f"no such verb: {args[0]}{near(args[0], (*VERBS, *_plugged()))}")
        return super().resolve_command(ctx, args)


@contextlib.contextmanager
def _without_threads() -> Iterator[None]:
    """Keeps the BLAS of a numpy that is imported in the meantime from starting a thread for each core."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keeps Python from looking for garbage among what is imported in the meantime, and later too: all of it stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def _plugged() -> dict[str, str]:
    """Returns the verbs that plug-ins add, with what the help says of each; none is imported for it."""
    from importlib.metadata import entry_points

    sentences = {}
    for point in entry_points(group="anynpu.verbs"):
        package = point.dist.name if point.dist else ""
        if point.name in VERBS:
            continue
        sentences[point.name] = f"from {package}" if package else ""
        if package == "anynpu":  # the first line of a module of ours
            import ast
            from importlib.util import find_spec

            spec = find_spec(point.module)
            source = Path(spec.origin).read_text("utf-8") if spec is not None and spec.origin else ""
            sentences[point.name] = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return sentences


EPILOG = """\b
Examples:
  anynpu build -m zoo:resnet8 -t cpu,tflm,ethos-u55-128 -o out
  anynpu build -m net.onnx -t hxwe2 --data calibration.npz -o out
  anynpu build -m net.py:Net --ckpt net.pth --shape input=1,3,32,32 -t tflm --data calib.npy -o out
  anynpu check -m net.onnx -t ethos-u55-128

\b
Exit status: 0 done; 1 done, verdict negative; 2 usage or configuration; 3 cannot go to that chip;
4 toolchain or driver missing; 5 vendor tool failed; 6 device; 7 accuracy gate; 8 integrity; 130 interrupted."""


@click.group(
    cls=Verbs,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "ANYNPU", "max_content_width": 110},
)
@click.version_option(__version__, prog_name="anynpu")
def root() -> None:
    """One model in, any NPU out: compile it, prove it, run it, measure it.

    Give a PyTorch or ONNX model and the names of chips; anynpu exports, quantises and compiles it, executes the
    result, compares it with the float model, and says which operators run on the NPU and why others do not.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does
    # Somewhere to write when the shell closed stdout or stderr (`>&-`)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  # open to the very end
    # `-m package.module:factory` means a module of the working folder too; last, so that it hides nothing.
    sys.path.append(str(Path.cwd()))
    with shown_streams():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", SuspectWarning)
                warnings.showwarning = _show_warning
                status = root.main(arguments, prog_name="anynpu", standalone_mode=False)
            sys.stdout.flush()
            return status if isinstance(status, int) else 0
        except AnyNpuError as error:
            return _tell(error, arguments)
        except click.exceptions.Exit as done:
            return done.exit_code
        except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:  # click 8.1 shows the help and leaves
            error.show()
            return ConfigError.exit_status
        except click.ClickException as error:
            ctx = getattr(error, "ctx", None)
            message = error.format_message().removesuffix(".")
            message = message[:1].lower() + message[1:]
            param = getattr(error, "param", None)
            if ctx and param is not None and ctx.get_parameter_source(param.name) == ParameterSource.ENVIRONMENT:
                message += f" (from {origin_of(ctx, param.name)})"
            return _tell(
                ConfigError(message, f"`{ctx.command_path if ctx else 'anynpu'} --help` shows the usage"), arguments
            )
        except (KeyboardInterrupt, click.Abort):
            click.echo("anynpu: interrupted; nothing half-made is left behind", err=True)
            return INTERRUPTED
        except SystemExit as error:
            # Click's word for a reader that went away.
            if type(drawn_on(sys.stdout)).__name__.endswith("PacifyFlushWrapper"):
                drop(sys.stdout)
                return 0
            return _tell(ConfigError(f"code that anynpu was given called sys.exit({error.code!r})"), arguments)
        except BrokenPipeError:
            # The reader of our output went away.
            drop(sys.stdout)
            return 0
        except Exception as error:
            return _tell_foreign(error, arguments)


_SHOW_FOREIGN = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Says on stderr that a result may be wrong; what libraries warn of goes its usual way."""
    if issubclass(category, SuspectWarning):
        click.echo(f"warning: {message}", err=True)
    else:
        _SHOW_FOREIGN(message, category, *where, **more)


def _tell_foreign(error: Exception, arguments: Sequence[str]) -> int:
    """Says what a library raised: a file that the system refuses is the user's matter, all else is a defect."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        drop(sys.stdout)
        return _tell(ConfigError("the output cannot be written: no space left on the disk"), arguments)
    if isinstance(error, OSError) and error.filename and error.strerror:
        return _tell(ConfigError(f"{error.filename}: {error.strerror}"), arguments)
    if isinstance(error, UnicodeEncodeError) or (isinstance(error, ValueError) and "null byte" in str(error)):
        odd = repr(error.object)[:200] if isinstance(error, UnicodeEncodeError) else "a name with \\0 in it"
        return _tell(ConfigError(f"{odd}: no file can have such a name"), arguments)
    return _tell(Defect(error), arguments)


def _tell(error: AnyNpuError, arguments: Sequence[str]) -> int:
    """Shows an error and returns its exit status; as JSON too where the command line asks for that."""
    verb = next((a for a in arguments if a in VERBS), "")
    pairs = list(zip(arguments, [*arguments[1:], ""], strict=True))
    stated = any((a in ("-f", "--format") and b == "json") or a in ("-fjson", "--format=json") for a, b in pairs)
    if stated or os.environ.get(f"ANYNPU_{verb.upper().replace('-', '_')}_FORMAT") == "json":
        from anynpu.records.parts import error_record

        click.echo(json.dumps({"error": error_record(error)}))
    show_error(error)
    if "-v" in arguments or "--verbose" in arguments:
        traceback.print_exception(error)
    return error.exit_status
