"""How named input tensors become a call of the model, and back: the one place that knows about parameters.

A *candidate* as the user gives it may be a tensor, a tuple or a dict, nested at will. ``CallForm.of`` flattens it to
names (``x``, ``state.h``, ``pair.0``) and remembers how to put values back into a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.space import Batch


@contextmanager
def staying() -> Iterator[None]:
    """A model that calls ``sys.exit`` raises instead: else it could end the search, and with a status that says
    "nothing found"."""
    try:
        yield
    except SystemExit as leave:
        raise RuntimeError(f"the model called sys.exit({leave.code!r})") from leave


@dataclass(frozen=True)
class Leaf:
    """The place of a tensor in a call."""

    name: str


@dataclass(frozen=True)
class CallForm:
    """``positional`` and ``keyword`` are structures (dict, list, tuple) whose leaves are ``Leaf`` or constants."""

    positional: tuple[Any, ...]
    keyword: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Input names in call order."""
        return tuple(_leaves((*self.positional, *self.keyword.values())))

    def bind(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` for the model."""
        return (
            tuple(_fill(a, values) for a in self.positional),
            {k: _fill(a, values) for k, a in self.keyword.items()},
        )

    def call(self, model: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        args, kwargs = self.bind(values)
        with staying():
            return model(*args, **kwargs)

    def resolve(self, name: str | int, what: str) -> str:
        """The canonical name for a parameter name or an index; one sentence if there is none."""
        key = str(name)
        if key in self.names:
            return key
        if key in self.aliases:
            return self.aliases[key]
        raise UsageError(
            f"{what} names the input {key!r}, but the inputs are {', '.join(self.names)}: use one of these"
        )

    def renamed(self, names: Mapping[str, str]) -> CallForm:
        """The same call with other names for its inputs."""

        def again(part: Any) -> Any:
            if isinstance(part, Leaf):
                return Leaf(names.get(part.name, part.name))
            if isinstance(part, dict):
                return {k: again(v) for k, v in part.items()}
            return type(part)(again(v) for v in part) if isinstance(part, list | tuple) else part

        return CallForm(tuple(map(again, self.positional)), {k: again(v) for k, v in self.keyword.items()}, {})

    def source(self, variable: str = "inputs") -> str:
        """The arguments as Python text: ``inputs["x"], mask=inputs["mask"]``."""
        parts = [_text(a, variable) for a in self.positional]
        parts += [f"{k}={_text(a, variable)}" for k, a in self.keyword.items()]
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "positional": [_to_json(a) for a in self.positional],
            "keyword": {k: _to_json(a) for k, a in self.keyword.items()},
            "aliases": dict(self.aliases),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CallForm:
        return CallForm(
            tuple(_from_json(a) for a in data["positional"]),
            {k: _from_json(a) for k, a in data["keyword"].items()},
            data.get("aliases", {}),
        )

    @staticmethod
    def of(model: Callable[..., Any], candidate: Any) -> CallForm:
        """Decides where each part of a candidate goes.

        Dict keys go to the parameters of those names where they match, the rest in order; a dict that matches no
        name of a one-parameter model is passed whole. Tuples and single tensors go by position.
        """
        names, takes_any_keyword, takes_any_position = parameters(model)
        _all_given(model, candidate)
        if isinstance(candidate, dict) and isinstance(model, torch.fx.GraphModule) and set(candidate) == set(names):
            candidate = tuple(candidate[n] for n in names)
        if isinstance(candidate, dict):
            return _as_exported(model, _of_dict(candidate, names, takes_any_keyword, takes_any_position), names)
        parts = tuple(candidate) if isinstance(candidate, tuple) else (candidate,)
        if len(parts) > len(names) and not takes_any_position:
            raise UsageError(
                f"the seeds hold {len(parts)} inputs but the model takes {len(names)} ({', '.join(names) or 'none'}): "
                "give as many as it takes"
            )
        labels = [names[i] if i < len(names) else str(i) for i in range(len(parts))]
        positional = tuple(_template(p, label) for p, label in zip(parts, labels, strict=True))
        count = len(parts) if takes_any_position else _by_position(model, len(parts))
        by_name = dict(zip(names[count:], positional[count:], strict=False))
        form = CallForm(positional[:count], by_name, _index_aliases(positional, labels))
        return _as_exported(model, form, names)


def _by_position(model: Callable[..., Any], most: int) -> int:
    """How many of the first arguments may be given by position; those behind a ``*`` must be named."""
    try:
        found = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model).parameters.values()
    except (TypeError, ValueError):
        return most
    named_only = [p.kind is p.KEYWORD_ONLY for p in found]
    return min(most, named_only.index(True)) if True in named_only else most


def _as_exported(model: Callable[..., Any], form: CallForm, names: list[str]) -> CallForm:
    """An exported program takes exactly the arguments it was exported with, each in the way it was given then: the
    first ones by position, the others by keyword. Other models keep the form."""
    exported = _exported(model)
    if exported is None:
        return form
    given = dict(zip(names, form.positional, strict=False)) | dict(form.keyword)
    if missing := [n for n in names if n not in given]:
        raise UsageError(
            f"the model was exported with the inputs {', '.join(names)}, but the seeds give no {', '.join(missing)}: "
            "give them all"
        )
    count = len(exported.in_spec.child(0).children())
    return CallForm(tuple(given[n] for n in names[:count]), {n: given[n] for n in names[count:]}, form.aliases)


def _exported(model: Callable[..., Any]) -> Any:
    """What a ``torch.export`` module knows of its arguments; None for other models."""
    codegen = getattr(getattr(model, "graph", None), "_codegen", None)
    return getattr(codegen, "pytree_info", None) if isinstance(model, torch.fx.GraphModule) else None


def parameters(model: Callable[..., Any]) -> tuple[list[str], bool, bool]:
    """``(names that can be given, accepts **kwargs, accepts *args)`` of a module or function."""
    declared = getattr(model, "declared_inputs", None)
    if isinstance(declared, tuple):  # a graph file names its inputs, and not all of the names are Python's
        return list(declared), False, False
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return [a.name for a in _scripted(model)], False, False
    if (exported := _exported(model)) is not None:
        return [n for n in exported.orig_args if n != "self"], False, False
    try:
        found = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except (TypeError, ValueError):
        return [], True, True
    kinds = [(p.name, p.kind) for p in found.parameters.values()]
    stars = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    any_keyword, any_position = (any(k == star for _, k in kinds) for star in stars)
    return [n for n, k in kinds if k not in stars], any_keyword, any_position


def _scripted(model: Any) -> list[Any]:
    """The arguments of TorchScript, without the module itself, whatever its author called it."""
    bound = isinstance(model, torch.jit.ScriptModule)
    arguments = list((model.forward if bound else model).schema.arguments)
    return arguments[1:] if bound else arguments


def _needed(model: Callable[..., Any]) -> list[str]:
    """Names of the inputs that a call must give; empty where that cannot be known (an exported program says it
    itself)."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return [a.name for a in _scripted(model) if not a.has_default_value()]
    if isinstance(model, torch.fx.GraphModule):
        return []
    try:
        found = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in found if p.default is p.empty and p.kind in plain]


def _all_given(model: Callable[..., Any], candidate: Any) -> None:
    """Raises ``UsageError`` when the seeds give fewer inputs than the model asks for."""
    needed = _needed(model)
    given = len(candidate) if isinstance(candidate, dict | tuple) else 1
    if given < len(needed):
        names = ", ".join(candidate) if isinstance(candidate, dict) else f"{given} of them"
        raise UsageError(f"the model takes the inputs {', '.join(needed)} but the seeds give {names}: give them all")


def flatten(candidate: Any, form: CallForm) -> Batch:
    """The tensors of a candidate under the names of the form; raises ``UsageError`` when its structure differs."""
    parts: list[tuple[str, Any]]
    if isinstance(candidate, dict) and not _is_whole_dict(form):
        known = {form.aliases.get(k, k): v for k, v in candidate.items()}
        parts = list(known.items())
    elif isinstance(candidate, tuple):
        parts = list(zip(_labels(form), candidate, strict=False))
    else:
        parts = [(_labels(form)[0], candidate)]
    flat: Batch = {}
    for label, part in parts:
        _collect(part, label, flat)
    if set(flat) != set(form.names):
        raise UsageError(
            f"a seed holds the inputs {', '.join(flat) or 'none'} but the first one holds {', '.join(form.names)}: "
            "all seeds need the same structure"
        )
    return {n: flat[n] for n in form.names}


def _labels(form: CallForm) -> list[str]:
    """The top-level label of each positional argument, recovered from its first leaf."""
    labels = [
        a.name if isinstance(a, Leaf) else next(iter(_leaves(a)), "").split(".")[0] for a in form.positional
    ]  # the name of an input may hold dots of its own
    return labels + list(form.keyword)


def _is_whole_dict(form: CallForm) -> bool:
    return len(form.positional) == 1 and not form.keyword and isinstance(form.positional[0], dict)


def _of_dict(candidate: dict[str, Any], names: list[str], any_keyword: bool, any_position: bool) -> CallForm:
    matched = [k for k in candidate if k in names]
    if not matched and len(names) == 1 and len(candidate) > 1:
        label = names[0]
        whole = _template(candidate, label)
        aliases = {n.removeprefix(f"{label}."): n for n in _leaves(whole)}
        return CallForm((whole,), {}, aliases)
    free = [n for n in names if n not in matched]
    keyword, positional, aliases = {}, [], {}
    rest = [k for k in candidate if k not in matched]
    if not matched and (len(rest) <= len(free) or any_position):
        positional = [_template(candidate[k], k) for k in rest]
        aliases = dict(zip(free, rest, strict=False))
    else:
        for key in candidate:
            if key in matched or (any_keyword and not free):
                keyword[key] = _template(candidate[key], key)
            elif free:
                parameter = free.pop(0)
                keyword[parameter] = _template(candidate[key], key)
                aliases[parameter] = key
            else:
                raise UsageError(
                    f"the seeds hold {', '.join(candidate)} but the model takes {', '.join(names) or 'nothing'}: "
                    f"there is no place for {key!r}"
                )
    order = list(candidate)
    aliases |= {str(i): k for i, k in enumerate(order) if str(i) not in order}
    return CallForm(tuple(positional), keyword, aliases)


def _index_aliases(positional: tuple[Any, ...], labels: list[str]) -> dict[str, str]:
    aliases = {}
    for i, (part, label) in enumerate(zip(positional, labels, strict=True)):
        if isinstance(part, Leaf) and str(i) != label:
            aliases[str(i)] = label
    return aliases


def _template(part: Any, label: str) -> Any:
    if isinstance(part, Tensor):
        return Leaf(label)
    if isinstance(part, dict):
        return {k: _template(v, f"{label}.{k}") for k, v in part.items()}
    if isinstance(part, list | tuple):
        inner = [_template(v, f"{label}.{i}") for i, v in enumerate(part)]
        return inner if isinstance(part, list) else tuple(inner)
    if part is None or isinstance(part, bool | int | float | str):
        return part
    raise UsageError(
        f"the input {label!r} is a {type(part).__name__}, but inputs are tensors, dicts or tuples of tensors, "
        "or plain constants: convert it"
    )


def _collect(part: Any, label: str, into: Batch) -> None:
    if isinstance(part, Tensor):
        into[label] = part
    elif isinstance(part, dict):
        for k, v in part.items():
            _collect(v, f"{label}.{k}", into)
    elif isinstance(part, list | tuple):
        for i, v in enumerate(part):
            _collect(v, f"{label}.{i}", into)


def _leaves(part: Any) -> list[str]:
    if isinstance(part, Leaf):
        return [part.name]
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
    return [name for p in inner for name in _leaves(p)]


def _fill(part: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(part, Leaf):
        return values[part.name]
    if isinstance(part, dict):
        return {k: _fill(v, values) for k, v in part.items()}
    if isinstance(part, list):
        return [_fill(v, values) for v in part]
    return tuple(_fill(v, values) for v in part) if isinstance(part, tuple) else part


def _text(part: Any, variable: str) -> str:
    if isinstance(part, Leaf):
        return f"{variable}[{part.name!r}]"
    if isinstance(part, dict):
        return "{" + ", ".join(f"{k!r}: {_text(v, variable)}" for k, v in part.items()) + "}"
    if isinstance(part, list | tuple):
        inner = ", ".join(_text(v, variable) for v in part)
        return f"[{inner}]" if isinstance(part, list) else f"({inner},)"
    return repr(part)


def _to_json(part: Any) -> Any:
    if isinstance(part, Leaf):
        return {"leaf": part.name}
    if isinstance(part, dict):
        return {"dict": {k: _to_json(v) for k, v in part.items()}}
    if isinstance(part, list | tuple):
        return {"list" if isinstance(part, list) else "tuple": [_to_json(v) for v in part]}
    return {"constant": part}


def _from_json(data: Mapping[str, Any]) -> Any:
    ((tag, value),) = data.items()
    if tag == "leaf":
        return Leaf(value)
    if tag == "dict":
        return {k: _from_json(v) for k, v in value.items()}
    if tag in ("list", "tuple"):
        inner = [_from_json(v) for v in value]
        return inner if tag == "list" else tuple(inner)
    return value
