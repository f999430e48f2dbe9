"""What ONNX Runtime says against a model or against inputs, as a person would say it.

Its own messages hold places in its C++ sources, schemas and frames; of use are the node, the version, the type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import onnxruntime as ort

import onnx
from nnfuzz.onnx.files import OLDEST, OWN, imports
from nnfuzz.onnx.naming import label_of, nodes_of, told
from nnfuzz.onnx.ops import find_operator

_LONGEST = 200
"""Characters of ONNX Runtime's own words that are shown where nothing better is known."""
_HERE = f"ONNX Runtime {ort.__version__}"


def refused_model(name: str, proto: onnx.ModelProto, error: Exception) -> str:
    """Why ONNX Runtime does not load a model, in one sentence that begins with what the model is called.

    Args:
        name: of the file. proto: its content, with a name for every node (see ``naming``), since that is how ONNX
            Runtime tells which node it means. error: what it raised.
    """
    text = first_line(error)
    for pattern, say in _SAYINGS:
        found = re.search(pattern, text)
        if found is not None:
            return f"{name} {say(proto, found)}"
    return f"{name} cannot be loaded by {_HERE} ({_shortened(text)}): onnx.checker.check_model may say more"


def first_line(error: Exception, labels: Collection[str] = ()) -> str:
    """What an error of ONNX Runtime says, in one line: "Gather node 'look_up': index out of bounds".

    Args:
        labels: names of the nodes; what optimisation has made of one has its name with something appended.
    """
    text = "".join(c if c.isprintable() else "?" for c in " ".join(str(error).split()))
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = text.removesuffix(" Please fix either the inputs/outputs or the model.")
    failing = r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: "
    found = re.findall(failing, text)
    said = without_places(text.rpartition("Status Message: ")[2]) if found else without_places(text)
    if found:
        op, name = found[-1]
        name = max((known for known in labels if name.startswith(known)), key=len, default=name)
        said = re.sub(r"^[\w\s.()<>=!&|+*-]+ was false\. ", "", said)  # the assertion in C++, before what it means
        said = f"{told(name, op).removeprefix('the ') if name else f'{op} node without a name'}: {said}"
    return said or type(error).__name__


def named_in(error: Exception) -> str | None:
    """What the failing node is called in an error of ONNX Runtime; None where it speaks of none."""
    found = re.findall(r"returned while running \w+ node\. Name:'([^']*)'", str(error))
    return found[-1] if found else None


def without_places(text: str) -> str:
    """Without the frame of loading and the places in ONNX Runtime's sources, each with a function's signature."""
    text = re.sub(r"^Load model from .*? failed:\s*", "", text)
    text = re.sub(r"^(Exception during initialization|Exception caught): ", "", text)
    # "/onnxruntime_src/…/model.cc:256 onnxruntime::Model::Model(…) Unsupported …", nested ones after one another
    place = r"(?:/\S+|\w+)\.(?:cc|h|cpp|cu)[: ]\d+ (?:[\w:<>,~ \*&]*?\((?:[^()]|\([^()]*\))*\)(?: const)?|\w+) ?"
    return re.sub(place, "", text).strip()


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(' ', 1)[0]} …"


# ---------------------------------------------------------------------------------------------------- loading

Say = Callable[[onnx.ModelProto, "re.Match[str]"], str]


def _format(_: onnx.ModelProto, found: re.Match[str]) -> str:
    return (
        f"is written in version {found[1]} of the file format (its ir_version), and {_HERE} reads up to {found[2]}: "
        "export it with an older onnx, or install a newer onnxruntime"
    )


def _too_new(_: onnx.ModelProto, found: re.Match[str]) -> str:
    return _newer(int(found[1]), found[2], int(found[3]))


def _newer(version: int, domain: str, newest: int) -> str:
    asked = f"opset {newest} or older" if domain == "ai.onnx" else f"version {newest} or older of it"
    return (
        f"uses opset {version} of the domain {domain!r}, and {_HERE} has this domain up to {newest}: export it for "
        f"{asked}, or install a newer onnxruntime"
    )


def _not_imported(proto: onnx.ModelProto, found: re.Match[str]) -> str:
    domain = found[1]
    where = next((n for n in nodes_of(proto.graph) if n.domain == domain), None)
    operator = f"the operator {where.op_type} ({told(label_of(where))})" if where is not None else "an operator"
    return (
        f"uses {operator} of the domain {domain!r}, but does not say which version of that domain (it imports "
        f"{imports(proto)}): export it again, or add the domain to its opset_import"
    )


def _unknown_operator(proto: onnx.ModelProto, found: re.Match[str]) -> str:
    """A node that ONNX Runtime has no kernel or function for; the interpreter may know it."""
    op = found[2]
    node = next((n for n in nodes_of(proto.graph) if n.op_type == op), None)
    domain = node.domain if node is not None else found[1]
    version = next((o.version for o in proto.opset_import if o.domain == domain or {o.domain, domain} <= {*OWN}), 1)
    newest = onnx.defs.onnx_opset_version()
    if domain in OWN and version > newest and onnx.defs.has(op):
        return _newer(version, "ai.onnx", newest)
    where = f" ({told(label_of(node))})" if node is not None else ""
    known = find_operator(domain, op) is not None
    ours = "but nnfuzz's interpreter does" if known else "and neither does nnfuzz's interpreter"
    return (
        f"cannot be run: {_HERE} does not know the operator {op} of domain {domain or 'ai.onnx'!r}, version {version}"
        f"{where}, {ours}: export the model with operators that it has"
    )


def _no_kernel(_: onnx.ModelProto, found: re.Match[str]) -> str:
    op, version, where = found[1], int(found[2]), told(found[3])
    what = f"cannot be run: {_HERE} has no implementation of {op} of opset {version}"
    if version < OLDEST:
        return f"{what} ({where}): export it with opset {OLDEST} or newer"
    return f"{what} for the element types at {where}: put a Cast to float32 there, or export it with another opset"


def _no_type(_: onnx.ModelProto, found: re.Match[str]) -> str:
    return f"{_INVALID} a value is declared with the element type {found[1]}, which ONNX does not define: {_AGAIN}"


def _two_types(_: onnx.ModelProto, found: re.Match[str]) -> str:
    return f"{_INVALID} {told(found[4], found[1])} is given both {found[2]} and {found[3]}, but needs one type: {_CAST}"


def _wrong_type(_: onnx.ModelProto, found: re.Match[str]) -> str:
    return (
        f"{_INVALID} {told(found[4], found[3])} reads {found[2]!r} of type {found[1]}, which it does not take: {_CAST}"
    )


def _wrong_output(_: onnx.ModelProto, found: re.Match[str]) -> str:
    return (
        f"{_INVALID} the value {found[2]!r} that {told(found[3])} makes is declared {found[1]}, but is {found[4]}: "
        "correct the declaration, or export it again"
    )


def _shapes(_: onnx.ModelProto, found: re.Match[str]) -> str:
    return f"{_INVALID} the shapes at {told(found[1], found[2])} do not fit ({_shortened(found[3])}): {_AGAIN}"


def _malformed(_: onnx.ModelProto, found: re.Match[str]) -> str:
    said = re.sub(r"^Node ?\(.*?\) with schema\(.*?\) ", "it ", found[3])
    unordered = re.search(r"topologically sorted, however input '(.*?)' of node: name: (\S*) ?OpType: (\w+)", said)
    if unordered is not None:
        return (
            f"{_INVALID} inside {told(found[1], found[2])} a {unordered[3]} reads {unordered[1]!r}, which nothing "
            f"before it makes: {_AGAIN}"
        )
    return f"{_INVALID} {told(found[1], found[2])}: {_shortened(said).rstrip('.')}: {_AGAIN}"


def _twice(_: onnx.ModelProto, found: re.Match[str]) -> str:
    return f"{_INVALID} two nodes or constants make {found[1]!r}: {_AGAIN}"


def _circle(_: onnx.ModelProto, found: re.Match[str]) -> str:
    return f"{_INVALID} a node needs its own result: {_AGAIN}"


_INVALID = "is not a valid ONNX graph:"
_CAST = "put a Cast there, or export it again"
_AGAIN = "export it again"
_TENSOR = r"tensor\((\w+)\)"
_SAYINGS: tuple[tuple[str, Say], ...] = (
    (r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", _format),
    (r"Missing model IR version", lambda *_: f"does not say its ir_version, so {_HERE} cannot read it: {_AGAIN}"),
    (r"Invalid tensor data type (\d+)", _no_type),
    (r"Opset (\d+) is under development.*official support for domain (\S+) is till opset (\d+)", _too_new),
    (r"No opset import for domain '?([\w.]+)'?", _not_imported),
    (r"([\w.]*):?\b(\w+)\(-?\d+\) is not a registered function/op", _unknown_operator),
    (r"No Op registered for ()(\S+) with domain_version", _unknown_operator),
    (r"Could not find an implementation for ([\w.:]+)\((\d+)\) node with name '([^']*)'", _no_kernel),
    (rf"of Optype \((\w+)\) bound to different types \({_TENSOR} and {_TENSOR}\)? in node \((.*?)\)\.?$", _two_types),
    (rf"Type '{_TENSOR}' of input parameter \((.*?)\) of operator \((\w+)\) in node \((.*?)\) is invalid", _wrong_type),
    (
        rf"Type \({_TENSOR}\) of output arg \((.*?)\) of node \((.*?)\) does not match expected type \({_TENSOR}\)",
        _wrong_output,
    ),
    (r"Node ?\((.*?)\) Op \((\w+)\) \[\w+\] (.*)", _shapes),
    (r'In Node, \("(.*?)", (.*?), ".*?", .*?, Error (.*)', _malformed),
    (r"Duplicate definition of name \((.*?)\)", _twice),
    (r"graph is not acyclic", _circle),
)
