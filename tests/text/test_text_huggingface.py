"""Hugging Face models: the same text as their own ``generate``, from objects and folders, without any download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import nnfuzz
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.text.codec import unpack
from nnfuzz.text.models import Prompts, Writing, language_model

transformers = pytest.importorskip("transformers", reason="the extra [text] is not installed")
pytestmark = pytest.mark.filterwarnings("default::Warning:transformers", "default::FutureWarning")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog "] * 3, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>")


def gpt(tokenizer: Any, kind: str = "GPT2LMHeadModel", **more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, initializer_range=0.4,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, **{"n_positions": 96, **more},
    )  # fmt: skip
    return getattr(transformers, kind)(config).eval()


def llama(tokenizer: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=96, initializer_range=0.4, bos_token_id=0, eos_token_id=0, pad_token_id=0, **more,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("make", [gpt, llama])
def test_batches_with_a_cache_write_what_generate_writes_alone(make: Any, tokenizer: Any) -> None:
    model = make(tokenizer)
    ours = language_model((model, tokenizer))
    assert ours.codec is not None
    texts = ["the fox", "quick brown dog jumps over", "z", "lazy lazy"]
    ids = [ours.codec.encode(t) for t in texts]
    mine = unpack(ours.run(Prompts(ids, ours.codec), Writing(10)).outputs["tokens"])
    for prompt, written in zip(ids, mine, strict=True):
        given = torch.tensor([prompt])
        whole = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=10, do_sample=False)
        assert written == [i for i in whole[0, len(prompt) :].tolist() if i != 0]


def test_each_of_several_ends_ends_a_text(tokenizer: Any) -> None:
    model = gpt(tokenizer)
    prompt = [5, 9, 30]
    given = torch.tensor([prompt])
    how = {"attention_mask": torch.ones_like(given), "max_new_tokens": 10, "do_sample": False}
    free = model.generate(given, **how)[0, 3:].tolist()
    model.generation_config.eos_token_id = [0, free[4]]
    ours = language_model((model, tokenizer))
    assert ours.codec is not None
    (mine,) = unpack(ours.run(Prompts([prompt], ours.codec), Writing(10)).outputs["tokens"])
    theirs = model.generate(given, **how)[0, 3:].tolist()
    assert mine == theirs[:-1] == free[: free.index(free[4])]


def test_a_model_without_a_cache_is_unsupported(tokenizer: Any) -> None:
    config = transformers.RwkvConfig(
        vocab_size=len(tokenizer), hidden_size=16, attention_hidden_size=16, num_hidden_layers=2, context_length=64
    )
    model = transformers.RwkvForCausalLM(config).eval()
    with pytest.raises(Unsupported, match=r"RwkvForCausalLM gives no key/value cache .* logits\(ids\)"):
        nnfuzz.fuzz_text((model, tokenizer), ["the fox"], objective="repeat:3", max_inputs=10, max_new=16)


def test_no_limit_of_positions_is_none(tokenizer: Any) -> None:
    model = llama(tokenizer)
    model.config.max_position_embeddings = -1
    assert language_model((model, tokenizer)).longest is None


def test_a_search_in_tokens_and_in_text(tokenizer: Any) -> None:
    for kind in ("tokens", "text"):
        run = nnfuzz.fuzz_text(
            (gpt(tokenizer), tokenizer), ["the fox", "over the dog"], objective=["loop:3", "utf8"], kind=kind,
            max_inputs=128, max_new=12, max_shrink=60,
        )  # fmt: skip
        assert run.findings
        assert all("continuation" in f.details for f in run.findings)


def test_special_tokens_stay_out_unless_allowed(tokenizer: Any) -> None:
    model = (gpt(tokenizer), tokenizer)
    run = nnfuzz.fuzz_text(model, ["the fox"], objective="words:zq", max_inputs=200, max_new=4)
    assert all(0 not in unpack(run.corpus.candidate(i)["prompt"])[0] for i in run.corpus)
    with pytest.raises(UsageError, match="--allow-special"):
        nnfuzz.fuzz_text(model, [[5, 0]], objective="words:zq", max_inputs=10)
    nnfuzz.fuzz_text(model, [[5, 0]], objective="words:zq", max_inputs=10, allow_special=True, max_new=4)


def test_gradients_bring_a_wished_word_nearer(tokenizer: Any) -> None:
    model = language_model((gpt(tokenizer), tokenizer))
    assert model.codec is not None
    prompt, wish = model.codec.encode("the quick dog jumps"), model.codec.encode(" fox")
    before = model.wish([prompt], [wish], Writing(), cosines=True)
    assert before.cosines is not None
    place, token = divmod(int(before.cosines[0].argmax()), before.cosines.shape[2])
    changed = [*prompt[:place], token, *prompt[place + 1 :]]
    after = model.wish([changed], [wish], Writing(), cosines=False)
    assert float(after.score[0]) > float(before.score[0])


def test_folders(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from nnfuzz.cli import main

    gpt(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("the fox\nover the dog\n")
    monkeypatch.chdir(tmp_path)
    words = ["text", "model", "-s", "prompts.txt", "--objective", "utf8", "-n", "100", "--max-new", "12"]
    assert main([*words, "--max-shrink", "40", "--out", "run"]) == 1
    assert main(["repro", "run/findings/F0001"]) == 1
    (tmp_path / "model").rename(tmp_path / "moved")
    again, moved = ["run/findings/F0001"], ["--model", "moved"]
    assert main(["repro", *again]) == 2
    assert main(["repro", *again, *moved]) == 1
    assert main(["shrink", *again, *moved, "-n", "20"]) == 0
    assert main(["explain", *again, *moved]) == 0
    assert main(["resume", "run", *moved, "-n", "120"]) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        language_model("empty")


def test_the_second_model_of_a_finding_may_be_a_folder(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nnfuzz.cli import main

    for name, model in (("a", gpt(tokenizer)), ("b", gpt(tokenizer, n_inner=8))):
        model.save_pretrained(tmp_path / name)
    (tmp_path / "prompts.txt").write_text("1 2 3\n")
    monkeypatch.chdir(tmp_path)
    words = ["text", "a", "b", "-s", "prompts.txt", "--objective", "disagree", "-n", "20", "--max-shrink", "20"]
    assert main([*words, "--max-new", "4", "--out", "run"]) == 1
    (tmp_path / "b").rename(tmp_path / "c")
    assert main(["repro", "run/findings/F0001", "--model-b", "c"]) == 1
    capsys.readouterr()
    assert main(["repro", "--help"]) == 0
    assert "Hugging Face folder" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def half_saved(model: Any, folder: Path, *gone: str) -> None:
    """As ``save_pretrained`` does it, but for some tensors."""
    kept = {n: t for n, t in model.state_dict().items() if not n.endswith(gone)}
    model.save_pretrained(folder, state_dict=kept)


def test_a_folder_without_all_weights_is_refused(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from nnfuzz.cli import main

    half_saved(gpt(tokenizer), tmp_path / "model", "h.1.mlp.c_fc.weight", "h.1.mlp.c_proj.bias")
    (tmp_path / "prompts.txt").write_text("1 2 3\n")
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    assert main(["text", "model", "-s", "prompts.txt", "--objective", "endless", "-n", "10"]) == 2
    told = capfd.readouterr().err
    assert "model lacks weights of GPT2LMHeadModel" in told
    assert "transformer.h.1.mlp.c_fc.weight, transformer.h.1.mlp.c_proj.bias; give" in told
    assert len(told.strip().splitlines()) == 1


def test_a_classifier_that_was_never_trained_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    half_saved(gpt(tokenizer, "GPT2ForSequenceClassification", num_labels=3), tmp_path / "model", "score.weight")
    with pytest.raises(UsageError, match=r"lacks weights of GPT2ForSequenceClassification, .*: score\.weight;"):
        language_model(tmp_path / "model")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("make", [gpt, llama])
def test_tied_weights_are_not_missing(tmp_path: Path, tokenizer: Any, make: Any, tied: bool) -> None:
    model = make(tokenizer, tie_word_embeddings=tied)
    half_saved(model, tmp_path / "model", "lm_head.weight")
    if tied:
        language_model(tmp_path / "model")
    else:
        with pytest.raises(UsageError, match=r"lm_head\.weight"):
            language_model(tmp_path / "model")


def test_loading_a_folder_prints_nothing(tmp_path: Path, tokenizer: Any, capfd: pytest.CaptureFixture[str]) -> None:
    from nnfuzz.text import repro_writing

    log = transformers.utils.logging
    gpt(tokenizer).save_pretrained(tmp_path / "model")
    capfd.readouterr()
    before = log.is_progress_bar_enabled(), log.get_verbosity()
    try:
        log.enable_progress_bar()
        language_model(tmp_path / "model")
        assert log.is_progress_bar_enabled()
        repro_writing.opened_model(str(tmp_path / "model"))
    finally:
        (log.enable_progress_bar if before[0] else log.disable_progress_bar)()
    assert log.get_verbosity() == before[1]
    assert capfd.readouterr() == ("", "")


def test_classifiers(tokenizer: Any) -> None:
    model = (gpt(tokenizer, "GPT2ForSequenceClassification", num_labels=3), tokenizer)
    run = nnfuzz.fuzz_text(
        model,
        ["the fox", "over the dog"],
        objective=["disagree", "nonfinite"],
        as_="bf16",
        max_inputs=600,
        max_shrink=60,
    )
    assert all(f.symptom == "disagreement" and "classes" in f.details for f in run.findings)
    assert run.findings
    with pytest.raises(UsageError, match="a classifier writes nothing"):
        nnfuzz.fuzz_text(model, ["the fox"], objective="loop:3")


def test_prompt_and_continuation_must_fit(tokenizer: Any) -> None:
    with pytest.raises(UsageError, match="takes 96 tokens at most"):
        nnfuzz.fuzz_text((gpt(tokenizer), tokenizer), ["the fox"], objective="loop:3", max_new=96)


def test_a_limit_is_told_of_the_model_that_has_it(tokenizer: Any) -> None:
    wide, narrow = gpt(tokenizer), gpt(tokenizer, n_positions=32)
    wide.config.name_or_path, narrow.config.name_or_path = "wide", "narrow"
    for a, b in ((wide, narrow), (narrow, wide)):
        with pytest.raises(UsageError, match=r"^narrow takes 32 tokens at most"):
            nnfuzz.fuzz_text((a, tokenizer), ["the fox"], model_b=(b, tokenizer), objective="disagree", max_new=40)


def test_what_writes_and_what_classifies_make_no_pair(tokenizer: Any) -> None:
    writer, judge = gpt(tokenizer), gpt(tokenizer, "GPT2ForSequenceClassification", num_labels=3, n_positions=32)
    writer.config.name_or_path, judge.config.name_or_path = "writer", "judge"
    for a, b in ((writer, judge), (judge, writer)):
        with pytest.raises(UsageError, match=r"^writer writes text and judge is a classifier, so"):
            nnfuzz.fuzz_text((a, tokenizer), ["the fox"], model_b=(b, tokenizer), objective="disagree")


def test_training_mode_is_noticed_and_said(tokenizer: Any) -> None:
    assert "was in training mode" in language_model((gpt(tokenizer).train(), tokenizer)).notes[0]
    assert not language_model((gpt(tokenizer), tokenizer)).notes
