"""Student: it leaves the model unchanged, rejects what does not fit, and exports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, one_by_one, tiny_llama
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from fastreader import Reader
from fastreader.errors import ContextOverflowError, InputError, UnsupportedModelError

peft = pytest.importorskip("peft", reason="the student's adapters come from PEFT: pip install 'fastreader[distill]'")

from fastreader.moi.distill import LoraSettings, Student, agreement  # noqa: E402
from fastreader.moi.distill.gradients import GradientKeys  # noqa: E402

SEQUENCES = [([5, 6, 7, 8, 9], [10, 11]), ([5, 6, 7, 20], [10, 11, 12])]


def trained(student):
    torch.manual_seed(5)
    with torch.no_grad():
        for p in student.parameters():
            p.copy_(0.1 * torch.randn_like(p))
    return student


def test_the_model_given_is_left_as_found():
    model = tiny_llama()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    attention = model.config._attn_implementation
    student = trained(Student.load((model, byte_tokenizer())))
    student.merged()
    assert all(p.requires_grad for p in model.parameters())
    assert model.config._attn_implementation == attention
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not hasattr(model, "peft_config")


@pytest.mark.parametrize("fails", [False, True])
def test_the_modes_of_the_modules_given_are_left_as_found(monkeypatch, fails):
    """Keep the mode of each module, in which dropout may be on, also if the student is rejected."""
    model = tiny_llama().train()
    model.model.layers[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    if fails:
        monkeypatch.setattr(agreement, "_TOLERANCE", {torch.float32: (-1.0, -1.0)})
        with pytest.raises(UnsupportedModelError, match="differ by"):
            Student.load((model, byte_tokenizer()))
    else:
        Student.load((model, byte_tokenizer()))
    assert before == {name: module.training for name, module in model.named_modules()}


def test_quantised_models_are_refused_by_name():
    model = tiny_llama()
    model.is_quantized, model.config.quantization_config = True, {"quant_method": "hqq"}
    with pytest.raises(UnsupportedModelError, match="its weights are quantised by hqq"):
        Student.load((model, byte_tokenizer()))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_refused_model_of_bitsandbytes_is_left_as_found(tmp_path, bits):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed; install the extra quantised")
    tiny_llama(hidden_size=128, intermediate_size=256).save_pretrained(tmp_path)
    config = BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config, dtype=torch.float32).eval()
    rows = torch.arange(2, 9)[None]
    with torch.no_grad():
        before = model(rows).logits
        with pytest.raises(UnsupportedModelError, match="quantised by bitsandbytes"):
            Student.load((model, byte_tokenizer()))
        torch.testing.assert_close(model(rows).logits, before, atol=0, rtol=0)


def test_only_the_adapter_is_trained():
    student = Student.load((tiny_llama(), byte_tokenizer()), lora=LoraSettings(rank=2))
    count = sum(p.numel() for p in student.parameters())
    assert 0 < count < sum(p.numel() for p in student.model.parameters()) / 10


def test_dropout_only_while_training():
    student = trained(Student.load((tiny_llama(), byte_tokenizer()), lora=LoraSettings(dropout=0.5)))
    with torch.no_grad():
        still = [student.loglikelihood(SEQUENCES)[0] for _ in range(2)]
        student.train(True)
        moving = [student.loglikelihood(SEQUENCES)[0] for _ in range(2)]
        student.train(False)
        after = student.loglikelihood(SEQUENCES)[0]
    assert torch.equal(*still)
    assert torch.equal(after, still[0])
    assert not torch.equal(*moving)


def test_merged_scores_as_the_student():
    tokenizer = byte_tokenizer()
    student = trained(Student.load((tiny_llama(), tokenizer)))
    with torch.no_grad():
        own = student.loglikelihood(SEQUENCES)[0].numpy()
    merged = student.merged()
    reader = Reader.load((merged, tokenizer), precision="exact")
    np.testing.assert_allclose(reader.score(SEQUENCES).logprob, own, atol=1e-4)
    np.testing.assert_allclose([x.sum() for x in one_by_one(merged, SEQUENCES)], own, atol=1e-4)


def test_export_loads_again(tmp_path):
    student = trained(Student.load((tiny_llama(), byte_tokenizer())))
    student.export(tmp_path / "model")
    with torch.no_grad():
        own = student.loglikelihood(SEQUENCES)[0].numpy()
    reader = Reader.load(tmp_path / "model", device="cpu", precision="exact")
    np.testing.assert_allclose(reader.score(SEQUENCES).logprob, own, atol=1e-4)


def test_saved_adapter_is_peft_s(tmp_path):
    model = tiny_llama()
    student = trained(Student.load((model, byte_tokenizer())))
    student.save_adapter(tmp_path)
    loaded = peft.PeftModel.from_pretrained(tiny_llama(), tmp_path).eval()
    with torch.no_grad():
        own = student.loglikelihood(SEQUENCES)[0].numpy()
    np.testing.assert_allclose([x.sum() for x in one_by_one(loaded, SEQUENCES)], own, atol=1e-4)


def test_too_long():
    student = Student.load((tiny_llama(max_position_embeddings=32), byte_tokenizer()))
    with pytest.raises(ContextOverflowError, match=r"40 tokens; the context of .* is 32"):
        student.loglikelihood([([5] * 39, [6, 7])])


def test_an_architecture_that_differs_is_rejected(monkeypatch):
    """The probe at the start sees what no rule names: here attention that is off."""
    off = lambda self, layer, q, k, v, scores: v.repeat_interleave(q.shape[1] // v.shape[1], 1)  # noqa: E731
    monkeypatch.setattr(GradientKeys, "attend", off)
    with pytest.raises(UnsupportedModelError, match="differ by"):
        Student.load((tiny_llama(), byte_tokenizer()))


def test_other_weights_are_rejected():
    small, large = (Student.load((tiny_llama(), byte_tokenizer()), lora=LoraSettings(rank=r)) for r in (2, 4))
    with pytest.raises(InputError, match="weights of this adapter"):
        small.set_adapter(large.adapter())


@pytest.mark.parametrize(("values", "message"), [({"rank": 0}, "rank"), ({"dropout": 1.0}, "dropout")])
def test_lora_settings(values, message):
    with pytest.raises(InputError, match=message):
        LoraSettings(**values)
