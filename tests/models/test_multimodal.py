"""Text of checkpoints that also see: the text model's kernels, and the numbers of the whole model one at a time."""

import pytest
import torch
import transformers
from support import byte_tokenizer

import fastreader as fr
from fastreader.errors import UnsupportedModelError
from fastreader.models import text as text_models

SIZES = {
    "vocab_size": 261,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "projection_dim": 32,
}


def text_config(kind, **values):
    return {"model_type": kind, **SIZES, **values}


def gemma3():
    config = transformers.Gemma3Config(
        text_config={**SIZES, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        vision_config={**VISION, "model_type": "siglip_vision_model"},
        mm_tokens_per_image=4,
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def mistral3():
    vision = {**VISION, "model_type": "pixtral", "head_dim": 16}
    config = transformers.Mistral3Config(text_config=text_config("mistral"), vision_config=vision)
    return transformers.Mistral3ForConditionalGeneration(config)


def llava():
    vision = {**VISION, "model_type": "clip_vision_model"}
    config = transformers.LlavaConfig(text_config=text_config("llama"), vision_config=vision)
    return transformers.LlavaForConditionalGeneration(config)


def paligemma():
    vision = {**VISION, "model_type": "siglip_vision_model"}
    config = transformers.PaliGemmaConfig(text_config=text_config("gemma"), vision_config=vision)
    return transformers.PaliGemmaForConditionalGeneration(config)


def internvl():
    vision = {**VISION, "model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]}
    config = transformers.InternVLConfig(text_config=text_config("qwen2"), vision_config=vision)
    return transformers.InternVLForConditionalGeneration(config)


def aya():
    vision = {**VISION, "model_type": "siglip_vision_model"}
    config = transformers.AyaVisionConfig(text_config=text_config("cohere2"), vision_config=vision)
    return transformers.AyaVisionForConditionalGeneration(config)


def idefics3():
    vision = {**VISION, "model_type": "idefics3_vision"}
    config = transformers.Idefics3Config(text_config=text_config("llama"), vision_config=vision)
    return transformers.Idefics3ForConditionalGeneration(config)


FAMILIES = [gemma3, mistral3, llava, internvl, idefics3]


@pytest.fixture(params=FAMILIES, ids=lambda make: make.__name__)
def whole(request):
    torch.manual_seed(0)
    model = request.param().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


@torch.no_grad()
def one_at_a_time(model, context, continuation):
    ids = torch.tensor([list(context) + list(continuation)])
    rows = model(input_ids=ids).logits[0].double().log_softmax(-1)[len(context) - 1 : -1]
    return float(rows.gather(1, torch.tensor(continuation)[:, None]).sum())


def test_text_runs_fused_with_the_numbers_of_the_whole_model(whole, tmp_path):
    whole.save_pretrained(tmp_path)
    byte_tokenizer(chat=True).save_pretrained(tmp_path)
    shared = list(range(20, 60))
    pairs = [([*shared, i], [70 + i, 80, 90 + i]) for i in range(4)]
    direct = [one_at_a_time(whole, *pair) for pair in pairs]
    for given in (tmp_path, (whole, byte_tokenizer(chat=True))):
        reader = fr.Reader.load(given, device="cpu", precision="exact")
        assert "fused (3 layer" in reader.describe()["forward"]
        assert not any("vision" in name for name, _ in reader.model.named_modules())
        found = [result.logprob for result in reader.loglikelihood(pairs)]
        assert found == pytest.approx(direct, abs=1e-4)


def test_it_has_the_path_and_digits_of_the_text_model_alone(tmp_path):
    whole = gemma3().eval()
    config = whole.config.get_text_config()
    alone = transformers.Gemma3ForCausalLM(config).eval()
    alone.model.load_state_dict(whole.model.language_model.state_dict())
    readers = [fr.Reader.load((m, byte_tokenizer()), device="cpu", precision="exact") for m in (whole, alone)]
    paths = [reader.describe()["forward"] for reader in readers]
    assert paths[0] == paths[1]
    pairs = [([20, 30, 40], [50, 60])]
    assert readers[0].score(pairs).logprob.tolist() == readers[1].score(pairs).logprob.tolist()
    texts = [reader.generate([[20, 30]], max_new_tokens=5)[0][0].token_ids for reader in readers]
    assert texts[0] == texts[1]


def test_a_whole_model_that_reads_text_otherwise_stays_whole():
    """AyaVision does not scale its logits, as the Cohere 2 inside does alone; the check at load refuses it then."""
    whole = aya().eval()
    assert text_models.text_model(whole) is whole
    with pytest.raises(UnsupportedModelError, match="log-probabilities differ"):
        fr.Reader.load((whole, byte_tokenizer()), device="cpu")


def test_text_that_is_read_in_both_directions_is_refused():
    """transformers' default attention lets PaliGemma's text see what follows; its eager attention does not."""
    with pytest.raises(UnsupportedModelError, match="both directions"):
        fr.Reader.load((paligemma().eval(), byte_tokenizer()), device="cpu")
    config = transformers.GemmaConfig(**SIZES, use_bidirectional_attention=True)
    with pytest.raises(UnsupportedModelError, match="both directions"):
        fr.Reader.load((transformers.GemmaForCausalLM(config).eval(), byte_tokenizer()), device="cpu")


def test_a_callers_model_keeps_its_mode():
    whole = gemma3().train()
    assert text_models.text_model(whole) is not whole
    assert all(module.training for module in whole.modules())


def test_models_of_text_are_left_alone(tiny_reader):
    model = tiny_reader.model
    assert text_models.text_model(model) is model
