"""SEEDS: every form, in the dtype it has, and one sentence for everything that is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from nnfuzz.errors import UsageError
from nnfuzz.loading import load_seeds, make_seeds
from nnfuzz.loading.made import parse_input

SOURCE = """\
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

x = torch.arange(12.0).reshape(6, 2)
y = torch.arange(6)
pair = (x, y)
named = {"x": x, "deep": {"h": x + 1}}
array = x.numpy()
ragged = [torch.ones(2), torch.ones(3)]
pairs = [(torch.ones(2), 1), (torch.ones(2), 2)]
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=4, shuffle=True)
unbatched = DataLoader(data, batch_size=None)
many = TensorDataset(torch.arange(5000.0)[:, None])
big_loader = DataLoader(many, batch_size=300)
needs_grad = x.clone().requires_grad_()
text = ["hello"]
nothing = 3

def make():
    return torch.rand(4, 2)

def stream():
    yield from (torch.full((2,), float(i)) for i in range(3))

class Ragged(IterableDataset):
    def __iter__(self):
        yield torch.ones(2)
        yield torch.ones(3)

ragged_data = Ragged()

class Dicts(torch.utils.data.Dataset):
    def __len__(self): return 3
    def __getitem__(self, i): return {"x": np.full(2, i, dtype=np.float32), "y": i}

dicts = Dicts()

def fails():
    return x[99]

def one(x):
    return x

def empty():
    return []
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seeds_of_zoo.py").write_text(SOURCE)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("seeds_of_zoo", None)


def load(name: str, **more: Any) -> Any:
    return load_seeds(f"seeds_of_zoo.py:{name}", **more)


def test_arrays(project: Path) -> None:
    np.save("a.npy", np.arange(6, dtype=">f4").reshape(3, 2))
    np.savez("b.npz", x=np.ones((3, 2), np.uint8), y=np.zeros(3, np.uint16))
    a, b = load_seeds("a.npy"), load_seeds("b.npz")
    assert torch.equal(a, torch.arange(6.0).reshape(3, 2))
    assert {n: t.dtype for n, t in b.items()} == {"x": torch.uint8, "y": torch.int32}


def test_tensor_files(project: Path) -> None:
    save_file({"x": torch.ones(3, 2)}, "a.safetensors")
    torch.save((torch.ones(3), {"h": torch.zeros(3)}), "b.pt")
    assert list(load_seeds("a.safetensors")) == ["x"]
    first, second = load_seeds("b.pt")
    assert (first.shape, second["h"].shape) == ((3,), (3,))


@pytest.mark.parametrize("name", ["x", "array", "needs_grad"])
def test_tensors(project: Path, name: str) -> None:
    got = load(name)
    assert torch.equal(got, torch.arange(12.0).reshape(6, 2))
    assert not got.requires_grad


def test_structures(project: Path) -> None:
    assert [len(t) for t in load("pair")] == [6, 6]
    assert load("named")["deep"]["h"].shape == (6, 2)


def test_lists_are_whole_candidates(project: Path) -> None:
    assert [t.shape for t in load("ragged")] == [(2,), (3,)]
    assert load("pairs")[1][1] == 2


def test_datasets(project: Path) -> None:
    x, y = load("data")
    assert (x.shape, y.tolist()) == ((6, 2), [0, 1, 2, 3, 4, 5])
    assert load("dicts")["y"].tolist() == [0, 1, 2]
    assert [t.shape for t in load("ragged_data")] == [(2,), (3,)]
    assert load("stream").shape == (3, 2)


def test_shuffled_loaders_give_the_same_again(project: Path) -> None:
    first, second = load("loader"), load("loader")
    assert torch.equal(first[1], second[1])
    assert sorted(first[1].tolist()) == list(range(6))


def test_random_makers_give_the_same_again(project: Path) -> None:
    torch.manual_seed(8)
    first = load("make")
    torch.manual_seed(9)
    assert torch.equal(first, load("make"))


def test_large_sources_are_cut_and_said(project: Path) -> None:
    notes: list[str] = []
    assert load("many", notes=notes)[0][:3, 0].tolist() == [0, 5, 10]
    assert len(load("big_loader", notes=notes)[0]) == 1200
    assert notes == [
        "took 1,000 of the 5,000 candidates in seeds_of_zoo.py:many, evenly spaced",
        "took the first 1,200 candidates that seeds_of_zoo.py:big_loader gave",
    ]


def test_labels_the_model_does_not_take(project: Path) -> None:
    notes: list[str] = []
    got = load("data", model=lambda x: x, notes=notes)
    assert isinstance(got, torch.Tensor)
    assert notes == ["the model takes x: the label of each candidate in the dataset is left out"]
    assert isinstance(load("data", model=lambda x, y: x), tuple)
    assert isinstance(load("data", model=lambda *parts: parts), tuple)


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (5, 4), value: Any = 51) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def test_images(project: Path) -> None:
    picture(Path("pics/b.png"), value=(255, 0, 51))
    picture(Path("pics/cat/a.JPG"), "L", value=51)
    picture(Path("pics/.hidden/c.png"), size=(1, 1))
    got = load_seeds("pics")
    assert (got.shape, got.dtype) == ((2, 3, 4, 5), torch.float32)
    torch.testing.assert_close(got[0, :, 0, 0], torch.tensor([1.0, 0, 0.2]))
    torch.testing.assert_close(got[1, :, 0, 0], torch.full((3,), 0.2), atol=0.01, rtol=0)


def test_gray_images(project: Path) -> None:
    picture(Path("pics/a.png"), "L")
    Image.fromarray(np.full((4, 5), 65535, np.uint16)).save("pics/deep.png")
    got = load_seeds("pics")
    assert got.shape == (2, 1, 4, 5)
    assert got[1].min() == 1


def test_opaque_alpha_is_dropped(project: Path) -> None:
    picture(Path("pics/a.png"), "RGBA", value=(255, 0, 0, 255))
    assert load_seeds("pics").shape == (1, 3, 4, 5)


def test_bad_folders(project: Path) -> None:
    Path("empty").mkdir()
    assert refused("empty") == "the folder empty holds no PNG or JPEG images"
    picture(Path("sizes/a.png"))
    picture(Path("sizes/b.png"), size=(6, 4))
    assert refused("sizes") == "sizes/b.png is 6x4 but a.png is 5x4: images in a folder need one size"
    Path("broken").mkdir()
    Path("broken/a.png").write_bytes(b"no picture")
    assert refused("broken").startswith("broken/a.png cannot be read as an image: ")
    picture(Path("glass/a.png"), "RGBA", value=(255, 0, 0, 7))
    assert refused("glass").startswith("glass/a.png is transparent in places")


def test_nothing_is_unpickled(project: Path) -> None:
    np.save("o.npy", np.array([Evil(project)], dtype=object), allow_pickle=True)
    np.savez("o.npz", x=np.array([Evil(project)], dtype=object))
    torch.save([Evil(project)], "o.pt")
    for name in ("o.npy", "o.npz"):
        assert refused(name) == f"{name} holds Python objects, which only unpickling could read: save plain numbers"
    assert "holds more than tensors, and nnfuzz never runs code from a seeds file" in refused("o.pt")
    assert not Path("ran").exists()


class Evil:
    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.folder / "ran",))


def test_bad_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("e.npy").touch()
    Path("c.npz").write_bytes(b"PK nothing")
    Path("c.safetensors").write_bytes(b"\x00" * 30)
    Path("notes.txt").write_text("hello")
    np.save("s.npy", np.array(["a"]))
    np.save("z.npy", np.zeros(()))
    np.save("n.npy", np.zeros((0, 3)))
    np.savez("l.npz", x=np.zeros((3, 2)), y=np.zeros(2))
    np.savez("none.npz")
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), "m.pt")
    messages = {
        "e.npy": "e.npy is empty",
        "gone.npz": "there is no file gone.npz",
        "gone": "there is no file or folder gone",
        "s.npy": "s.npy holds <U1 values, which torch has no tensors for: convert to numbers",
        "z.npy": "z.npy is a single number, but the first axis of seeds counts the candidates",
        "n.npy": "n.npy is empty: its shape is [0, 3]",
        "none.npz": "none.npz holds no seeds",
        "l.npz": "l.npz holds inputs with different numbers of candidates (x has 3, y has 2): "
        "the first axis counts them",
        "m.pt": "m.pt holds a model, not seeds: save tensors with torch.save, or give file.py:name",
        "notes.txt": "notes.txt is no seeds file that nnfuzz knows: give .npz, .npy, .safetensors, .pt, a folder "
        "of PNG or JPEG images, a run directory, or file.py:name",
    }
    for name, message in messages.items():
        assert refused(name) == message
    assert refused("c.npz") == "c.npz is no .npz file, or it was cut short: write one with numpy.savez"
    assert refused("c.safetensors").startswith("c.safetensors cannot be read as .safetensors: ")
    monkeypatch.setattr("nnfuzz.loading.seeds.MAX_BYTES", 100)
    np.savez_compressed("bomb.npz", x=np.zeros((1000, 1000)))
    assert "bomb.npz holds 0.0 GiB, more than the 0 GiB that seeds may take" in refused("bomb.npz")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "seeds_of_zoo.py:nothing is a single number, but the first axis of seeds counts the candidates"),
        ("text", "seeds_of_zoo.py:text[0] holds a str, but seeds are tensors, arrays, or tuples and dicts of them"),
        ("unbatched", "the loader seeds_of_zoo.py:unbatched has no batches: give its dataset instead"),
        ("empty", "seeds_of_zoo.py:empty holds no seeds"),
        ("gone", "seeds_of_zoo.py has no 'gone'"),
        ("fails", "making the seeds from seeds_of_zoo.py:fails failed: IndexError: index 99 is out of bounds"),
        ("one", "making the seeds from seeds_of_zoo.py:one failed: TypeError: one() missing 1 required positional"),
    ],
)
def test_bad_objects(project: Path, name: str, message: str) -> None:
    assert refused(f"seeds_of_zoo.py:{name}").startswith(message)


def test_made_seeds_stack() -> None:
    declared = [parse_input("x=float32[1,3]:-1..1"), parse_input("m=bool[1,2]"), parse_input("k=int64[1]:0..3")]
    seeds, ranges = make_seeds(declared, seed=1)
    assert {n: (tuple(t.shape), t.dtype) for n, t in seeds.items()} == {
        "x": ((16, 3), torch.float32),
        "m": ((16, 2), torch.bool),
        "k": ((16,), torch.int64),
    }
    assert ranges == {"x": (-1, 1), "k": (0, 3)}
    assert seeds["k"].unique().tolist() == [0, 1, 2, 3]
    again, _ = make_seeds(declared, seed=1)
    other, _ = make_seeds(declared, seed=2)
    assert torch.equal(seeds["x"], again["x"])
    assert not torch.equal(seeds["x"], other["x"])


def test_made_seeds_as_whole_candidates() -> None:
    seeds, ranges = make_seeds([parse_input("float16[4,3]:0..1"), parse_input("uint8[]:{0,255}")])
    assert len(seeds) == 16
    assert [t.shape for t in seeds[0]] == [(4, 3), ()]
    assert ranges == {"0": (0, 1), "1": [0, 255]}
    assert {int(c[1]) for c in seeds} == {0, 255}


def test_made_seeds_need_names_or_none() -> None:
    with pytest.raises(UsageError, match="with a name and without"):
        make_seeds([parse_input("x=bool[1]"), parse_input("bool[1]")])
    with pytest.raises(UsageError, match="declares 'x' twice"):
        make_seeds([parse_input("x=bool[1]"), parse_input("x=bool[1]")])


def refused(spec: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_seeds(spec)
    return str(caught.value)
