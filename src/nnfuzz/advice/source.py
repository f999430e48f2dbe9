"""A remedy in the user's own line: the failing call is found in the source and replaced in its text."""

from __future__ import annotations

import ast
import linecache
import re
from functools import cache

from nnfuzz.advice.calls import call_name
from nnfuzz.advice.patching import Repair
from nnfuzz.probe.sites import Site

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Div: "div", ast.Mult: "mul", ast.Add: "add", ast.Sub: "sub", ast.Pow: "pow", ast.MatMult: "matmul",
}  # fmt: skip
_WRITTEN = {
    "reciprocal": ("div",), "nll_loss": ("cross_entropy",), "mm": ("matmul", "linear"), "bmm": ("matmul",),
    "addmm": ("linear", "matmul"), "vector_norm": ("norm",), "svd": ("linalg_svd",),
}  # fmt: skip
"""How an operation may be written in the source where its name is another."""
_UNNAMED = ("x", "y")  # operands that the source does not show
_LOOSE = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda)


def code_line(repair: Repair) -> str:
    """The user's line with the remedy in it; the remedy's pattern with the user's operands where that cannot be; ""
    where there is neither."""
    template = repair.remedy.code
    eps = "" if repair.eps is None else f"{repair.eps:.3g}"
    found = _failing(repair.site)
    if found is None:
        general = "torch.log_softmax(logits, dim)" if template == "log-of" else template
        return _filled(general, [], eps, repair.site.op)
    tree, text, node = found
    operands = [_shown(text, o) for o in _operands(node)]
    if template == "log-of":
        new = _log_of(tree, text, node, repair.site.op)
        if new is None:
            return "torch.log_softmax(logits, dim) or torch.nn.functional.logsigmoid(logits) in place of the log"
    else:
        new = _filled(template, operands, eps, repair.site.op)
    if repair.remedy.around or not _is_expression(new):
        return new
    return _replaced(text, node, new)


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


@cache
def _parsed(file: str) -> tuple[ast.Module, tuple[str, ...]] | None:
    lines = linecache.getlines(file)
    try:
        return (ast.parse("".join(lines)), tuple(lines)) if lines else None
    except SyntaxError:
        return None


def _failing(site: Site) -> tuple[ast.Module, tuple[str, ...], ast.expr] | None:
    """(module, its lines, the expression at the site)."""
    parsed = _parsed(site.file) if site.file else None
    if parsed is None or site.line is None:
        return None
    tree, lines = parsed
    here = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call | ast.BinOp | ast.AugAssign)
        and n.lineno == site.line
        and (site.column is None or n.col_offset == site.column)
        and _name(n) in (call_name(site.op), *_WRITTEN.get(site.op, ()))
    ]
    return (tree, lines, here[0]) if here and isinstance(here[0], ast.expr) else None


def _name(node: ast.AST) -> str:
    """Plain name of the operation that an expression stands for."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return _OPERATORS.get(type(node.op), "")
    if isinstance(node, ast.Call):
        f = node.func
        return call_name(f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else "")
    return ""


def _operands(node: ast.expr) -> list[ast.expr]:
    """Operands in the order of the operation: of `x.pow(2)` x and 2, of `torch.pow(x, 2)` the same."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    assert isinstance(node, ast.Call)
    f = node.func
    method = isinstance(f, ast.Attribute) and not (
        isinstance(f.value, ast.Name | ast.Attribute) and ast.unparse(f.value).split(".")[0] in ("torch", "F", "nn")
    )
    given = [f.value, *node.args] if method and isinstance(f, ast.Attribute) else list(node.args)
    named = [k.value for k in node.keywords if k.arg in ("dim", "other", "exponent")]
    return [*given, *named]


def _shown(lines: tuple[str, ...], node: ast.expr) -> str:
    """Source text of an operand, in parentheses if anything may be attached to it only then."""
    text = ast.get_source_segment("".join(lines), node) or ast.unparse(node)
    text = " ".join(text.split())
    literal = isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    return f"({text})" if isinstance(node, _LOOSE) and not literal else text


def _filled(template: str, operands: list[str], eps: str, op: str) -> str:
    out = template.replace("{eps}", eps).replace("{op}", op)
    out = out.replace("{, 1}", f", {operands[1]}" if len(operands) > 1 else "")  # where some operations have one
    for i, unnamed in enumerate(_UNNAMED):
        out = out.replace(f"{{{i}}}", operands[i] if i < len(operands) else unnamed)
    return re.sub(r"\.clamp\(min=[\d.e-]+\)\.clamp\(min=", ".clamp(min=", out)  # one guard is enough


def _replaced(lines: tuple[str, ...], node: ast.expr, new: str) -> str:
    """The line of `node` with `new` in its place; `new` alone where the expression spans lines."""
    if node.end_lineno != node.lineno or node.end_col_offset is None:
        return new
    line = lines[node.lineno - 1].encode()
    return (line[: node.col_offset] + new.encode() + line[node.end_col_offset :]).decode().strip()


def _log_of(tree: ast.Module, lines: tuple[str, ...], node: ast.expr, op: str) -> str | None:
    """log_softmax or logsigmoid, with the arguments of the softmax that the failing log's argument names."""
    operands = _operands(node)
    inner: ast.expr | None = operands[0] if operands else None
    flipped = isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub)
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):  # log(1 - p)
        inner = inner.right
    if isinstance(inner, ast.Name):
        inner = _assigned(tree, inner.id, node.lineno)
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):  # log(p + eps)
        inner = inner.left
    if isinstance(inner, ast.Call) and _name(inner) == "relu" and _operands(inner):
        inner = _operands(inner)[0]
    if not isinstance(inner, ast.Call):
        return None
    name, parts = _name(inner), _operands(inner)
    if name not in ("softmax", "sigmoid") or not parts or op != "log":
        return None
    rest = "".join(f", {ast.unparse(p)}" for p in (*parts[1:],)) + "".join(
        f", {k.arg}={ast.unparse(k.value)}" for k in inner.keywords
    )
    text = _shown(lines, parts[0])
    if not flipped and isinstance(parts[0], _LOOSE):
        text = text.removeprefix("(").removesuffix(")")
    if name == "softmax":
        return None if flipped else f"torch.log_softmax({text}{rest})"
    return f"torch.nn.functional.logsigmoid({f'-{text}' if flipped else text})"


def _assigned(tree: ast.Module, name: str, before: int) -> ast.expr | None:
    """What was last assigned to a name above a line, in the function that holds the line."""
    functions = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.lineno <= before <= (n.end_lineno or 0)
    ]
    found: dict[int, ast.expr] = {}
    for n in ast.walk(max(functions, key=lambda f: f.lineno) if functions else tree):
        if not isinstance(n, ast.Assign) or n.lineno >= before:
            continue
        for target in n.targets:
            pairs = [(target, n.value)]
            if isinstance(target, ast.Tuple) and isinstance(n.value, ast.Tuple):
                pairs = list(zip(target.elts, n.value.elts, strict=False))
            for t, value in pairs:
                if isinstance(t, ast.Name) and t.id == name:
                    found[n.lineno] = value
    return found[max(found)] if found else None
