"""Proof: an export that is right gives no disagreement, and one that is wrong in a single node is found and named.

    python benchmarks/onnx_export.py [--inputs 1000000]

The digit classifier is exported by torch.onnx.export and compared with itself in ONNX Runtime, which must agree but for
ties. Then two exports are made wrong on purpose: in the classifier one row of a weight is turned round, behind a unit
that is silent on all seeds; in a small convolutional network a Resize interpolates with another rule for coordinates.
Each must be found, and the layer where the sides part must be the one that was touched.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import nnfuzz
import onnx
from lab import classifier, parser, seed_images, start
from onnx import numpy_helper


class Upsampler(nn.Module):
    """``(batch, 1, 28, 28)`` → logits ``(batch, 10)``: convolutions, and between them a picture made larger."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 6, 3, 2), nn.Conv2d(6, 8, 3, 2)
        self.head = nn.Linear(8, 10)

    def forward(self, image: Tensor) -> Tensor:
        small = torch.relu(self.first(image))
        large = nn.functional.interpolate(small, scale_factor=2.0, mode="bilinear", align_corners=False)
        logits: Tensor = self.head(torch.relu(self.second(large)).amax((2, 3)))
        return logits


def exported(model: nn.Module, example: Tensor, place: Path) -> onnx.ModelProto:
    """The model in a file, with a free batch axis."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("n")},), verbose=False)
    assert program is not None
    program.save(str(place))
    return onnx.load(str(place))


def silent_unit(model: nn.Module, seeds: Tensor) -> tuple[int, float]:
    """The unit of the last hidden layer that the seeds excite least, and the largest value that it takes on them."""
    with torch.no_grad():
        hidden: Tensor = model.layers[:4](seeds)  # type: ignore[index,operator]
    unit = int(hidden.amax(0).argmin())
    return unit, float(hidden[:, unit].max())


def with_turned_row(proto: onnx.ModelProto, weight: Tensor, unit: int) -> str:
    """In the initializer that holds ``weight`` the outgoing weights of a unit in reverse; returns the node's name."""
    for held in proto.graph.initializer:
        array = numpy_helper.to_array(held)
        if array.shape in (tuple(weight.shape), tuple(weight.T.shape)) and np.allclose(
            np.sort(array.ravel()), np.sort(weight.numpy().ravel())
        ):
            turned = array.copy() if array.shape == tuple(weight.shape) else array.T.copy()
            turned[:, unit] = turned[::-1, unit]
            turned = turned if array.shape == tuple(weight.shape) else turned.T
            held.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(turned), held.name))
            return next(n.name or n.op_type for n in proto.graph.node if held.name in n.input)
    raise SystemExit("the exported graph does not hold the weight as an initializer")


def with_other_resize(proto: onnx.ModelProto) -> str:
    node = next(n for n in proto.graph.node if n.op_type == "Resize")
    kept = [a for a in node.attribute if a.name != "coordinate_transformation_mode"]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric")])
    return str(node.name or node.op_type)


def told(name: str, run: Any, began: float) -> None:
    print(f"{name}: {len(run.findings)} findings in {run.stats.inputs:,} inputs, {time.perf_counter() - began:.0f} s")
    if run.findings:
        nearest = min(f.distance["linf"] for f in run.findings)
        print(f"  the first after {run.findings[0].inputs_tried:,} inputs, the nearest at L∞ {nearest:.3g}")


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--inputs", type=int, default=1_000_000)
    given = words.parse_args()
    start(given.threads)
    model, accuracy = classifier(0)
    seeds, _ = seed_images([model], 100)
    print(f"classifier: {accuracy:.1%} of held-out digits; 100 seeds, within [−1, 1]")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        exported(model, seeds[:2], place / "mnist.onnx")
        began = time.perf_counter()
        run = nnfuzz.diff(model, place / "mnist.onnx", seeds, ranges=(-1, 1), max_inputs=given.inputs, max_seconds=None)
        told("export against PyTorch", run, began)
        for finding in run.findings:
            print(
                f"  {finding.headline()}; margins {finding.details.get('margin_a')}, {finding.details.get('margin_b')}"
            )

        unit, value = silent_unit(model, seeds)
        proto = onnx.load(str(place / "mnist.onnx"))
        touched = with_turned_row(proto, model.layers[4].weight.detach(), unit)  # type: ignore[index,union-attr]
        onnx.save(proto, str(place / "turned.onnx"))
        print(f"\na row turned round behind unit {unit} (at most {value:.3g} on the seeds), read by {touched}")
        _wrong(model, place / "turned.onnx", seeds, touched, "argmax")

        net = Upsampler().eval()
        images = seeds.view(-1, 1, 28, 28)
        exported(net, images[:2], place / "resize.onnx")
        other = onnx.load(str(place / "resize.onnx"))
        touched = with_other_resize(other)
        onnx.save(other, str(place / "other.onnx"))
        print(f"\ncoordinates of the Resize {touched} taken as asymmetric")
        _wrong(net, place / "other.onnx", images, touched, "argmax")
        onnx_a = place / "resize.onnx"
        _wrong(onnx_a, place / "other.onnx", images, touched, "argmax")


def _wrong(model: Any, path: Path, seeds: Tensor, touched: str, compare: str) -> None:
    began = time.perf_counter()
    run = nnfuzz.diff(model, path, seeds, ranges=(-1, 1), compare=compare, max_inputs=30_000, max_seconds=60)
    told("wrong export", run, began)
    for finding in run.findings[:3]:
        print(f"  {finding.headline()}, {finding.status}")
        print(f"    begins at {finding.details.get('begins at')}")
    print(f"  touched: {touched}")


if __name__ == "__main__":
    main()
