"""``file.py:attr`` or ``pkg.mod:attr`` → the object: the one place that runs a user's file."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.loading.guard import user_code
from nnfuzz.nearest import did_you_mean

_LOADED: dict[Path, ModuleType] = {}
"""Files already run, so that a model and its seeds in one file share one module."""

_NEIGHBOURS: dict[str, Path] = {}
"""Modules that came in from a user's folder, by name: another folder's module of that name must not get them."""


def load_object(spec: str, what: str = "the object") -> Any:
    """The object that ``spec`` names; attributes may be dotted. Raises ``UsageError`` in one sentence."""
    check_object_word(spec, what)
    place, _, attribute = spec.rpartition(":")
    module = load_file(Path(place)) if _is_file_name(place) else load_module(place)
    return _attribute(module, attribute, place)


def check_object_word(spec: str, what: str = "the object") -> None:
    """What can be said of ``spec`` without running anything: its form, and whether its file is there."""
    place, found, attribute = spec.rpartition(":")
    if not found or not attribute or not place:
        raise UsageError(_no_attribute(spec, what))
    if not all(part.isidentifier() for part in attribute.split(".")):
        raise UsageError(f"{attribute!r} in {spec!r} is not a name: write file.py:name or pkg.mod:name")
    if _is_file_name(place) and not Path(place).is_file():
        raise UsageError(f"there is no file {place}")


def folder_of(spec: str) -> Path | None:
    """Where the file of a ``file.py:attr`` lies, the current folder for a module, None for other specs."""
    place, found, _ = spec.rpartition(":")
    if not found:
        return None
    return Path(place).resolve().parent if _is_file_name(place) else Path.cwd()


def load_file(path: Path) -> ModuleType:
    """Runs a Python file once, as a module, with its folder on the path."""
    full = path.resolve()
    if full in _LOADED:
        return _LOADED[full]
    if not full.is_file():
        raise UsageError(f"there is no file {path}")
    _forget_neighbours_named_in(full.parent)
    before = set(sys.modules)
    name = full.stem
    if name in sys.modules or not name.isidentifier() or _is_installed(name, full):
        name = f"{name}_{zlib.crc32(str(full).encode()):08x}"
    from nnfuzz.loading.seeded import seeded

    with seeded(0), user_code(f"importing {path.name}", full.parent):
        spec = importlib.util.spec_from_file_location(name, full)
        if spec is None or spec.loader is None:
            raise UsageError(f"{path} is not a Python file: a model or seeds in Python stand in a file.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            _remember_neighbours(before, full.parent)
    _LOADED[full] = module
    return module


def load_module(name: str) -> ModuleType:
    """Imports ``pkg.mod`` from the current folder or the installed packages."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} is neither a file that ends in .py nor a module name")
    from nnfuzz.loading.seeded import seeded

    with seeded(0), user_code(f"importing {name}", Path.cwd()):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise
            raise UsageError(
                f"there is no module {name!r} in {Path.cwd()} or among the installed packages: "
                "write pkg.mod:name or path/to/file.py:name"
            ) from None


def names_in(path: Path) -> list[str]:
    """What a Python file defines at its top level, read without running it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [t.id for t in targets if isinstance(t, ast.Name)]
    return [n for n in dict.fromkeys(names) if not n.startswith("_")]


def _is_file_name(place: str) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place


def _no_attribute(spec: str, what: str) -> str:
    path = Path(spec.rstrip(":"))
    if path.suffix == ".py" and path.is_file():
        names = names_in(path)
        inside = f"; it defines {', '.join(names[:8])}" if names else ""
        return f"{spec!r} does not say which object is {what}: write {path}:{names[0] if names else 'name'}{inside}"
    if path.suffix == ".py" and not path.exists():
        return f"there is no file {path}"
    return f"{spec!r} does not name {what}: write file.py:name or pkg.mod:name"


def _attribute(module: ModuleType, attribute: str, place: str) -> Any:
    found: Any = module
    done = place
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(_missing(found, part, done)) from None
        done = f"{done}:{part}" if found is module else f"{done}.{part}"
    return found


def _missing(holder: Any, name: str, place: str) -> str:
    public = [n for n in vars(holder) if not n.startswith("_")] if hasattr(holder, "__dict__") else []
    if isinstance(holder, ModuleType):
        own = [n for n in public if getattr(vars(holder)[n], "__module__", holder.__name__) == holder.__name__]
        public = [n for n in own if not isinstance(vars(holder)[n], ModuleType)]
    hint = did_you_mean(name, public)
    names = f"; it defines {', '.join(public[:8])}{', …' if len(public) > 8 else ''}" if public and not hint else ""
    return f"{place} has no {name!r}{hint}{names}"


def _is_installed(name: str, file: Path) -> bool:
    """Whether other code may import something of this name, which the user's file must not replace."""
    if name in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    return spec is not None and (spec.origin is None or Path(spec.origin).resolve() != file)


def _forget_neighbours_named_in(folder: Path) -> None:
    """``old/net.py`` and ``new/net.py`` may each import their own ``layers``: the second must not get the first's."""
    for name, home in list(_NEIGHBOURS.items()):
        top = name.partition(".")[0]
        if home != folder and ((folder / f"{top}.py").exists() or (folder / top).is_dir()):
            sys.modules.pop(name, None)
            del _NEIGHBOURS[name]
    importlib.invalidate_caches()


def _remember_neighbours(before: set[str], folder: Path) -> None:
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).resolve().is_relative_to(folder) and "site-packages" not in file:
            _NEIGHBOURS[name] = folder
