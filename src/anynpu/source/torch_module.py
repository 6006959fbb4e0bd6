"""Models written in torch by the user: `file.py:Class`, `file.py:factory` or `package.module:factory`."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from anynpu import schema
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.schema import Json
from anynpu.source.dependencies import installed

if TYPE_CHECKING:
    import torch

PRIVATE = "_anynpu_user_"
AI8X_VARIABLE = "AI8X_TRAIN_PATH"
STANDIN = Path(__file__).parent / "standin"
EXAMPLES = "write file.py:Class, file.py:factory or package.module:factory, for example net.py:Net"


@dataclass(frozen=True)
class TorchReference:
    """Where a module comes from and the keyword arguments it is constructed with."""

    location: str
    attribute: str
    arguments: Mapping[str, Json | bool] = field(default_factory=dict)

    @property
    def is_file(self) -> bool:
        """Whether the location is a Python file and not an importable module."""
        return self.location.endswith(".py")


def parse_reference(text: str, arguments: Mapping[str, Json] = {}) -> TorchReference:
    """Returns the reference that a text such as `net.py:Net` or `package.module:factory` stands for."""
    location, colon, attribute = text.rpartition(":")
    dotted = all(part.isidentifier() for part in location.split("."))
    dotted = dotted and not location.endswith((".onnx", ".pt", ".pth", ".ckpt", ".tflite"))
    if not colon or not attribute.isidentifier() or not (location.endswith(".py") or dotted):
        raise ConfigError(f"{text!r} is not a reference to a torch module", EXAMPLES)
    for name, value in arguments.items():
        if not isinstance(value, (str, int, float, bool)):
            raise ConfigError(f"constructor argument {name!r} is neither a text, a number nor a truth value")
    return TorchReference(location, attribute, dict(arguments))


def source_files(reference: TorchReference) -> tuple[Path, ...]:
    """Returns the reference's file and every local file that it imports, sorted; nothing is executed.

    Local are files next to it and packages below its folder. Of a module in site-packages or the standard library
    only the files on its dotted path count: following its imports would read whole frameworks.
    """
    pending, root = _start(reference)
    if installed(f"{root}/"):
        return tuple(sorted(pending))
    files: set[Path] = set()
    while pending:
        path = pending.pop()
        if path in files:
            continue
        files.add(path)
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    pending += _module_files(root, alias.name.split("."))
            elif isinstance(node, ast.ImportFrom):
                base = path.parents[node.level - 1] if node.level else root
                parts = node.module.split(".") if node.module else []
                for tail in ([], *([alias.name] for alias in node.names)):
                    pending += _module_files(base, [*parts, *tail])
    return tuple(sorted(files))


def _start(reference: TorchReference) -> tuple[list[Path], Path]:
    """Returns the first files and the folder that its absolute imports are looked up in."""
    if reference.is_file:
        path = _existing(reference)
        return [path], path.parent
    top, *rest = reference.location.split(".")
    # find_spec of a dotted name would import its parents; of a top-level name it runs nothing.
    spec = importlib.util.find_spec(top) if top not in sys.modules else sys.modules[top].__spec__
    places = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    if spec and spec.origin and not places:
        places = [Path(spec.origin)]
    if not places:
        raise ConfigError(f"there is no module {top!r} to import {reference.location!r} from", EXAMPLES)
    root = places[0].parent.resolve()
    files, wanted = _module_files(root, [top, *rest]), root.joinpath(top, *rest)
    if not files or files[-1] not in (wanted.with_name(f"{wanted.name}.py"), wanted / "__init__.py"):
        raise ConfigError(f"there is no module {reference.location!r} below {root}", EXAMPLES)
    return files, root


def _existing(reference: TorchReference) -> Path:
    path = Path(reference.location)
    if not path.is_file():
        raise ConfigError(f"{path} does not exist, so {reference.attribute!r} cannot be taken from it", EXAMPLES)
    return path.resolve()


def _module_files(root: Path, parts: Sequence[str]) -> list[Path]:
    """Returns the files that importing a dotted name below a folder executes, packages first; [] if it is not there."""
    files, folder = [], root
    for part in parts:
        package, module = folder / part / "__init__.py", folder / f"{part}.py"
        if package.is_file():
            files.append(package.resolve())
        elif module.is_file():
            return [*files, module.resolve()]
        elif not (folder / part).is_dir():
            return files
        folder = folder / part
    return files


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(
            f"{path} is not valid Python: {reason}{line}", "run it with python to see the place"
        ) from error


def load_module(reference: TorchReference, checkpoint: Path | None, trust_checkpoint: bool = False) -> torch.nn.Module:
    """Returns the referenced module in evaluation mode, with the weights of the checkpoint if one is given."""
    import torch

    from anynpu.source.checkpoint import load_into, load_tensors

    # stdout is data: whatever the user's file prints goes to stderr.
    with _training_package(), _imports_from(reference), contextlib.redirect_stdout(sys.stderr):
        code = _imported_module(reference)
        if not hasattr(code, reference.attribute):
            names = [name for name in vars(code) if not name.startswith("_")]
            local = [name for name in names if getattr(getattr(code, name), "__module__", "") == code.__name__]
            raise ConfigError(
                f"{reference.location} has no {reference.attribute!r}{schema.near(reference.attribute, names)}",
                f"it defines: {', '.join(sorted(local)[:8]) or 'nothing'}",
            )
        module = _constructed(getattr(code, reference.attribute), reference)
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(
                f"{_shown(reference)} gives a {type(module).__name__}, not a torch.nn.Module",
                "name a class derived from torch.nn.Module or a function that returns one",
            )
        if checkpoint is not None:
            load_into(module, load_tensors(checkpoint, trust_checkpoint))
    return module.eval()


@contextlib.contextmanager
def _training_package() -> Iterator[None]:
    """Lets a model import the vendor's module ai8x: from where its variable says, or else our stand-in for it.

    Models for the MAX78000 read the variable themselves and stop without it.
    """
    own = os.environ.get(AI8X_VARIABLE, "")
    place = own or str(STANDIN)
    os.environ[AI8X_VARIABLE] = place
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.remove(place)
        if not own:
            del os.environ[AI8X_VARIABLE]


def training_files(files: Sequence[Path]) -> tuple[Path, ...]:
    """Returns the vendor's own ai8x.py where a model's files mention it and the variable says where it is."""
    place = os.environ.get(AI8X_VARIABLE, "")
    if not place or not any(b"ai8x" in file.read_bytes() for file in files):
        return ()
    module = Path(place) / "ai8x.py"
    if not module.is_file():
        raise ConfigError(
            f"{AI8X_VARIABLE}={place}: there is no ai8x.py",
            "set it to a clone of ai8x-training, or unset it: anynpu brings a stand-in",
        )
    return (module,)


def standin_note() -> tuple[str, ...]:
    """Returns the sentence that says that a model was built with our stand-in, if it was."""
    origin = getattr(sys.modules.get("ai8x"), "__file__", None) or ""
    if not Path(origin).is_relative_to(STANDIN):
        return ()
    return (
        f"ai8x: anynpu's stand-in for the layers of ai8x-training was used; {AI8X_VARIABLE} names the vendor's own",
    )


@contextlib.contextmanager
def _imports_from(reference: TorchReference) -> Iterator[None]:
    """Puts the folder of the user's file on the import path for as long as the block runs."""
    if not reference.is_file:
        yield
        return
    folder = str(_existing(reference).parent)
    sys.path.insert(0, folder)
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(folder)
        # Files next to the user's are private to this load: another folder may hold others of the same name.
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None)
            own = name.startswith(PRIVATE) or "site-packages" in str(origin)
            if origin and Path(origin).is_relative_to(folder) and not own:
                del sys.modules[name]


def _imported_module(reference: TorchReference) -> ModuleType:
    try:
        if not reference.is_file:
            return importlib.import_module(reference.location)
        path = _existing(reference)
        _parsed(path)
        name = f"{PRIVATE}{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{path} cannot be imported as Python", EXAMPLES)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look their module up while it is being executed
        spec.loader.exec_module(module)
        return module
    except AnyNpuError:
        raise
    except (Exception, SystemExit) as error:
        hint = "run it with python to see the whole trace"
        if isinstance(error, ModuleNotFoundError) and error.name:
            hint = f"install {error.name}, or put it next to the file"
        raise ConfigError(f"importing {reference.location} failed: {_reason(error, reference)}", hint) from error


def _constructed(factory: Any, reference: TorchReference) -> Any:
    import torch

    if isinstance(factory, torch.nn.Module) and reference.arguments:
        raise ConfigError(f"{_shown(reference)} is a ready module and takes no arguments", "leave the arguments out")
    if isinstance(factory, torch.nn.Module) or not callable(factory):
        return factory
    if inspect.isclass(factory) and not issubclass(factory, torch.nn.Module):
        raise ConfigError(
            f"{_shown(reference)} is a class that is not derived from torch.nn.Module",
            "name a class derived from torch.nn.Module or a function that returns one",
        )
    try:
        return factory(**reference.arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"constructing {_shown(reference)} failed: {_reason(error, reference)}",
            "check the constructor arguments",
        ) from error


def _shown(reference: TorchReference) -> str:
    return f"{reference.location}:{reference.attribute}"


def _reason(error: BaseException, reference: TorchReference) -> str:
    """Returns the first line of an error and the line of the user's file that it came from."""
    text = (str(error).strip().splitlines() or [""])[0]
    first = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if not reference.is_file:
        return first
    folder = Path(reference.location).resolve().parent
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)
    ]
    return f"{first} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else first
