"""What a person sees of a finding: README.md and pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from nnfuzz.findings.finding import Finding
from nnfuzz.findings.save import save_finding
from nnfuzz.probe.sites import Site

Make = Callable[..., Finding]


def picture(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.copy()


def text_of(f: Finding, place: Path) -> str:
    return (save_finding(f, place) / "README.md").read_text()


def test_readme_says_what_happened(tmp_path: Path, finding: Make) -> None:
    logits = torch.zeros(1, 10)
    logits[0, 3], logits[0, 7] = 2.0, 1.25
    f = finding(outputs={"logits": logits, "p": torch.full((1, 9), torch.nan)}, ranges={"x": [-1, 1]}, train=True)
    f.site = Site("log", "head", "/x/net.py", 12, "return log(p)", "forward")
    f.notes = ["shrinking stopped early"]
    text = text_of(f, tmp_path / "F0001")
    for part in (
        "# F0001 nan at log (net.py:12)",
        "not a number (NaN): nan in output",
        "`log` at `/x/net.py`, line 12, in module `head`",
        "    return log(p)",
        "L∞ 2, L2 4, 4 elements changed",
        "`x` -1 … 1",
        "training mode",
        "| `logits` | float32[1, 10] | 0 … 2 | 3, 7 (0.75) |",
        "| `p` | float32[1, 9] | 9 × NaN |  |",
        "seed 2 → noise → splice",
        f"nnfuzz repro {tmp_path / 'F0001'}",
        f"nnfuzz shrink {tmp_path / 'F0001'}",
        "- shrinking stopped early",
        "found by fuzzing",
        "1,234 inputs",
    ):
        assert part in text, part


def test_details_are_told_in_full_or_cut_where_it_can_be_seen(tmp_path: Path, finding: Make) -> None:
    f = finding()
    f.site = Site("log", "head", "/x/net.py", 12, "return log(p)", "forward")
    operands = [f"  operand {i}: float32[1, 4] in [-1.05394e-06, 0.518522], [0, 0] = -1.05394372e-06" for i in range(9)]
    f.details |= {
        "bad_op": "\n".join(["nan from log (/x/net.py:12)", *operands, "  <- -1.05394e-06 from input: x[0, 0]"]),
        "vanishes again": False,
        "answer_a": 3,
        "referee": {"a": {"error": 0.25, "beyond its dtype": True}, "b": {"error": 0.5, "beyond its dtype": False}},
        "message": "word " * 200,
    }
    text = text_of(f, tmp_path / "F0001")
    assert "\n".join(f"    {line}" for line in operands) in text
    assert "\n      <- -1.05394e-06 from input: x[0, 0]\n" in text
    assert "nan from log (/x/net.py:12)" not in text  # the line above says it
    assert "- answer a: 3\n- referee a: error 0.25, beyond its dtype yes\n- referee b: error 0.5, beyond" in text
    (message,) = [line for line in text.splitlines() if line.startswith("- message")]
    assert message.endswith("word … (all of it in finding.json)")
    assert "vanishes" not in text
    assert "bad_op" not in text


def test_one_element_is_one(tmp_path: Path, finding: Make) -> None:
    x = torch.ones(1, 4)
    x[0, 0] = -5
    f = finding(x=x)
    f.lineage = [{"op": "seed", "id": 0}, {"op": "noise", "id": None}]
    text = text_of(f, tmp_path / "F0001")
    assert "L2 6, 1 element changed." in text
    assert "seed 2 → noise\n" in text


@pytest.mark.parametrize(("status", "says"), [("flaky", "does not fail every time"), ("batch-only", "only inside")])
def test_readme_is_honest_about_status(tmp_path: Path, finding: Make, status: str, says: str) -> None:
    f = finding()
    f.status = status
    assert says in text_of(f, tmp_path / "F0001")


def test_readme_without_much(tmp_path: Path, finding: Make) -> None:
    f = finding(x=torch.zeros(1, 3), seed=torch.zeros(1, 2), outputs={})
    f.outputs, f.lineage = {}, []
    text = text_of(f, tmp_path / "F0001")
    assert "shape differs" in text
    assert "## Outputs" not in text


def test_pictures_of_a_grey_image(tmp_path: Path, finding: Make) -> None:
    seed = torch.zeros(1, 1, 28, 28)
    seed[..., :14] = 1
    x = seed.clone()
    x[0, 0, 3, 20] = 0.25
    f = finding(x=x, seed=seed, ranges={"x": [-1, 1]})
    text = text_of(f, tmp_path / "F0001")
    images = {n: picture(tmp_path / "F0001" / f"{n}.png") for n in ("seed", "failing", "difference")}
    assert {i.size for i in images.values()} == {(224, 224)}
    pixel = (20 * 8, 3 * 8)
    assert [images[n].getpixel(pixel) for n in images] == [128, 159, 255]
    assert images["difference"].getpixel((0, 0)) == 128
    assert images["seed"].getpixel((0, 0)) == 255
    assert "amplified 4 times" in text
    assert "![failing](failing.png)" in text
    assert "8 × 8" in text


@pytest.mark.parametrize(
    ("shape", "unit", "size"),
    [
        ((1, 3, 32, 40), "sample", (240, 192)),
        ((1, 32, 40, 3), "sample", (240, 192)),
        ((3, 1, 8, 8), "batch", (728, 224)),
        ((20, 1, 8, 8), "batch", (1988, 224)),
        ((1, 300, 500), "sample", (500, 300)),
    ],
)
def test_shapes_of_images(
    tmp_path: Path, finding: Make, shape: tuple[int, ...], unit: str, size: tuple[int, int]
) -> None:
    x = torch.rand(shape)
    save_finding(finding(x=x, seed=torch.rand(shape), unit=unit), tmp_path / "F0001")
    assert picture(tmp_path / "F0001" / "difference.png").size == size


@pytest.mark.parametrize("x", [torch.zeros(1, 784), torch.zeros(1, 9, 9, dtype=torch.int64), torch.zeros(0, 9, 9)])
def test_no_pictures_of_other_inputs(tmp_path: Path, finding: Make, x: torch.Tensor) -> None:
    save_finding(finding(x=x), tmp_path / "F0001")
    assert not list((tmp_path / "F0001").glob("*.png"))


def test_flat_images_are_drawn_when_the_run_knows_their_shape(tmp_path: Path, finding: Make) -> None:
    save_finding(finding(x=torch.rand(1, 64), image_shapes={"x": [8, 8]}), tmp_path / "F0001")
    assert picture(tmp_path / "F0001" / "seed.png").size == (224, 224)


def test_odd_pixels(tmp_path: Path, finding: Make) -> None:
    x = torch.zeros(1, 8, 8)
    x[0, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    save_finding(finding(x=x, seed=torch.zeros(1, 9, 9)), tmp_path / "F0001")
    names = sorted(p.name for p in (tmp_path / "F0001").glob("*.png"))
    assert names == ["failing.png", "seed.png"]  # shapes differ: no difference


def test_several_images(tmp_path: Path, finding: Make) -> None:
    f = finding(x=torch.rand(1, 8, 8))
    f.inputs["y/z"] = f.seed["y/z"] = torch.rand(1, 8, 8)
    save_finding(f, tmp_path / "F0001")
    names = sorted(p.name for p in (tmp_path / "F0001").glob("*.png"))
    assert names == [
        "difference-y_z.png", "difference.png", "failing-y_z.png", "failing.png", "seed-y_z.png", "seed.png",
    ]  # fmt: skip
