"""Names of operations and places of calls."""

import functools
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnfuzz.probe import Site, first_bad, observe
from nnfuzz.probe.modules import Program, find_modules
from nnfuzz.probe.sites import node_op_name, op_name, plain_name

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (ATEN._softmax.default, "softmax"),
        (ATEN._log_softmax.default, "log_softmax"),
        (ATEN.sqrt_.default, "sqrt"),
        (ATEN._to_copy.default, "to"),
        (ATEN._linalg_svd.default, "svd"),
        (ATEN.native_layer_norm.default, "layer_norm"),
        (ATEN.nll_loss_forward.default, "nll_loss"),
        (ATEN._scaled_dot_product_flash_attention_for_cpu.default, "scaled_dot_product_attention"),
        (ATEN.log1p.default, "log1p"),
    ],
)
def test_plain_names(func: Any, name: str):
    assert op_name(func) == name


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("SqrtBackward0", "sqrt"),
        ("LogSoftmaxBackward0", "log_softmax"),
        ("LinalgSvdBackward0", "svd"),
        ("PowBackward1", "pow"),
        ("MyClampBackward", "MyClamp"),
        ("torch::autograd::AccumulateGrad", None),
    ],
)
def test_names_of_autograd_nodes(node: str, name: str | None):
    assert node_op_name(node) == name


def test_key_is_compact_and_tells_apart():
    site = Site("log", "head.0", "/home/me/models/net.py", 12, "y = x.log()", "forward", 8)
    assert site.key == "log@net.py:12:8[head.0]"
    assert site.backward().key == "log@net.py:12:8[head.0]~backward"
    assert plain_name("__rshift__") == "__rshift__"


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return helper(x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Inner(), Inner()])
        self.end = nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.end(x)


def helper(x: Tensor) -> Tensor:
    return torch.log(x) / (x - 1)


def _line(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_file_line_column_and_module_of_every_reading():
    x = torch.rand(2, 3) + 2
    seen = observe(Outer(), [x.requires_grad_()])
    logs = [r.site for r in seen.readings if r.hazard.id == "log.zero"]
    assert [s.module for s in logs] == ["blocks.0", "blocks.1"]
    for s in logs:
        assert (s.op, s.file, s.phase) == ("log", __file__, "forward")
        assert s.line == _line("return torch.log(x) / (x - 1)")
        assert s.source == "return torch.log(x) / (x - 1)"
        assert s.column == 11
    divisions = [r.site for r in seen.readings if r.hazard.id == "div.small"]
    assert divisions[0].phase == "backward"


def test_two_calls_on_one_line_are_two_sites():
    def program(p: Tensor) -> Tensor:
        return torch.log(p) + torch.log(1 - p)

    seen = observe(program, [torch.rand(3, requires_grad=True)])
    assert len({r.site.key for r in seen.readings if r.hazard.id == "log.zero"}) == 2


def test_stock_modules_without_user_code_are_named_by_path():
    model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1))
    bad = first_bad(model, [torch.tensor([[3e38, 3e38]])], backward=False)
    assert bad is None or bad.site.file is None
    with torch.no_grad():
        model[0].weight.fill_(10)
    bad = first_bad(model, [torch.tensor([[3e38, 3e38]])])
    assert bad is not None
    assert (bad.site.op, bad.site.module, bad.site.file) == ("addmm", "0", None)


def test_library_frames_are_passed_over_for_the_users_own():
    def program(x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1, eps=0.0)

    bad = first_bad(program, [torch.zeros(1, 3)])
    assert bad is not None
    assert bad.site.source == "return F.normalize(x, dim=-1, eps=0.0)"


def test_code_from_a_string_has_a_place(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        textwrap.dedent("""
        import torch
        def program(x):
            return torch.log(x)
    """)
    )
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    bad = first_bad(space["program"], [torch.zeros(1)])
    assert bad is not None
    assert (bad.site.file, bad.site.line, bad.site.source) == (str(path), 4, "return torch.log(x)")


MODEL = Outer()


def test_modules_are_found_wherever_they_hide():
    inner = nn.Linear(1, 1)

    def closure(x: Tensor) -> Tensor:
        return inner(x)

    def nested(x: Tensor) -> Tensor:
        return closure(x)

    def uses_global(x: Tensor) -> Tensor:
        return MODEL(x)

    class Holder:
        def __init__(self) -> None:
            self.net = inner

        def __call__(self, x: Tensor) -> Tensor:
            return self.net(x)

    assert find_modules(inner) == {"": inner}
    assert find_modules(inner.forward) == {"": inner}
    assert list(find_modules(closure).values()) == [inner]
    assert list(find_modules(nested).values()) == [inner]
    assert find_modules(uses_global) == {"MODEL": MODEL}
    assert list(find_modules(functools.partial(closure)).values()) == [inner]
    assert list(find_modules(Holder()).values()) == [inner]
    assert list(find_modules(lambda f, x: f(x), (inner,)).values()) == [inner]
    assert find_modules(json.dumps) == {}
    assert Program.of(uses_global).paths == {id(m): path for path, m in MODEL.named_modules()}
    both = Program.of(lambda x: MODEL(inner(x)))
    assert both.paths[id(MODEL.end)] == "MODEL.end"
    assert both.paths[id(inner)] == "inner"
