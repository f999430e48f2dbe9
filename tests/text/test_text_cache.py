"""The key/value cache with room: it shows what transformers' own shows, and copies nothing on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nnfuzz.text.models import Prompts, Writing, language_model
from nnfuzz.text.models import cache as cache_module
from nnfuzz.text.models import huggingface as huggingface_module
from nnfuzz.text.models.cache import with_room

transformers = pytest.importorskip("transformers", reason="the extra [text] is not installed")
pytestmark = pytest.mark.filterwarnings("default::Warning:transformers", "default::FutureWarning")

SIZES = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.4}
LLAMA = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **SIZES}


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, **SIZES))


def grouped() -> Any:
    """Fewer heads of keys than of queries, and places by rotation."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **LLAMA))


def windowed() -> Any:
    """A layer that sees the last ids only keeps a cache of its own kind."""
    config = transformers.MistralConfig(num_key_value_heads=2, sliding_window=4, **LLAMA)
    return transformers.MistralForCausalLM(config)


@pytest.mark.parametrize("make", [gpt2, grouped, windowed])
@pytest.mark.parametrize("first", [256, 1])
def test_texts_are_those_of_the_librarys_own_cache(make: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = language_model(make().eval())
    assert model.codec is not None
    monkeypatch.setattr(cache_module, "FIRST", first)
    ids = [[3, 9, 4], [7], [5, 5, 8, 2, 11, 30]]
    mine = model.run(Prompts(ids, model.codec), Writing(24, 0.7))
    monkeypatch.setattr(huggingface_module, "with_room", lambda cache, more: cache)
    theirs = model.run(Prompts(ids, model.codec), Writing(24, 0.7))
    assert torch.equal(mine.outputs["tokens"], theirs.outputs["tokens"])
    for name in ("logp", "margin"):
        assert torch.allclose(mine.outputs[name], theirs.outputs[name], atol=1e-5, equal_nan=True)
    assert torch.allclose(mine.layers["last"], theirs.layers["last"], atol=1e-5)


def filled(length: int = 3) -> Any:
    cache = transformers.DynamicCache()
    for layer in range(2):
        cache.update(torch.full((2, 1, length, 4), 1.0), torch.full((2, 1, length, 4), 2.0), layer)
    return cache


@pytest.mark.parametrize("first", [256, 2])
def test_nothing_that_is_held_moves(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "FIRST", first)
    cache = with_room(filled(), 6)
    moved = 0
    for n in range(6):
        before = cache.layers[0].keys.data_ptr()
        keys, values = cache.update(torch.full((2, 1, 1, 4), 3.0 + n), torch.full((2, 1, 1, 4), 4.0 + n), 0)
        moved += keys.data_ptr() != before
        assert keys.shape == values.shape == (2, 1, 4 + n, 4)
        assert keys[1, 0, :, 0].tolist() == [1, 1, 1, *range(3, 4 + n)]
        assert values[0, 0, :, 3].tolist() == [2, 2, 2, *range(4, 5 + n)]
        assert cache.get_seq_length() == 4 + n
    assert moved == (0 if first == 256 else 1)


def test_other_caches_are_left_alone() -> None:
    assert with_room(None, 5) is None
    pair = ((torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4)),)
    assert with_room(pair, 5) is pair
    cache = transformers.DynamicCache(config=transformers.MistralConfig(sliding_window=4, **LLAMA))
    cache.update(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4), 0)
    assert "update" not in vars(with_room(cache, 5).layers[0])
