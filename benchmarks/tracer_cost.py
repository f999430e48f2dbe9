"""What looking inside costs: a traced run with one backward pass against a plain forward and backward.

`python benchmarks/tracer_cost.py [--threads 1] [--seconds 2]` prints a table: milliseconds of a plain run, of `observe`
and one backward pass through outputs and all distances, and their ratio, for three networks at three batch sizes. The
two are timed in turn and the median of each is taken, so that a busy machine disturbs both alike.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnfuzz.probe import observe


class Block(nn.Module):
    """Basic residual block of ResNet-18 (He et al., 2016)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.skip(x))


def resnet18() -> nn.Module:
    """ResNet-18 for 32×32 images (3×3 stem), 11.2 million parameters."""
    stages = [Block(64, 64, 1), Block(64, 64, 1)]
    for inside, outside in ((64, 128), (128, 256), (256, 512)):
        stages += [Block(inside, outside, 2), Block(outside, outside, 1)]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def transformer() -> nn.Module:
    """Four encoder layers, width 128, four heads, over 32 tokens."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(128, 10))


def mlp() -> nn.Module:
    """784-256-128-10."""
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (mlp, (784,)),
    "ResNet-18, 32×32": (resnet18, (3, 32, 32)),
    "transformer": (transformer, (32, 128)),
}


def plain(model: nn.Module, x: Tensor) -> None:
    """Forward, and backward to the input."""
    torch.autograd.grad(torch.softmax(model(x), -1).log().sum(), x)


def traced(model: nn.Module, x: Tensor) -> None:
    """The same program observed; outputs and all distances differentiated together."""
    seen = observe(lambda x: torch.softmax(model(x), -1).log().sum(), [x], rows=len(x))
    targets = [r.distance.sum() for r in seen.readings if r.distance.requires_grad]
    torch.autograd.grad(seen.outputs + sum(targets), x)


def compare(model: nn.Module, x: Tensor, seconds: float) -> tuple[float, float]:
    """Median seconds of a plain and of a traced run."""
    times: dict[Callable[[nn.Module, Tensor], None], list[float]] = {plain: [], traced: []}
    for run in times:
        run(model, x)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[plain]) < 3:
        for run, spent in times.items():
            start = time.perf_counter()
            run(model, x)
            spent.append(time.perf_counter() - start)
    return statistics.median(times[plain]), statistics.median(times[traced])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="per cell")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {options.threads} thread(s)")
    print(f"{'network':<18}{'batch':>6}{'plain ms':>11}{'traced ms':>11}{'ratio':>7}")
    for name, (make, shape) in NETWORKS.items():
        model = make().eval().requires_grad_(False)
        for batch in options.batches:
            x = torch.randn(batch, *shape, requires_grad=True)
            a, b = compare(model, x, options.seconds)
            print(f"{name:<18}{batch:>6}{a * 1e3:>11.2f}{b * 1e3:>11.2f}{b / a:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
