"""What many tests use: tiny random models, a byte-level tokenizer, and the plain way to the same numbers."""

from __future__ import annotations

import copy
import gzip
import importlib
import json
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

PACKAGED = "smollm2-135m"
LONG_FORMS = bool(os.environ.get("FASTREADER_FUZZ"))  # `make fuzz` sets it: more of the same cases
QUESTIONS = Path(__file__).parents[2] / "examples" / "questions.jsonl"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def chequered(rows, columns) -> list:
    """Pair all rows (tuples, or single values) with all columns, every second pair only for `make fuzz`."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), column, marks=[pytest.mark.fuzz] * ((i + j) % 2))
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def byte_tokenizer(chat: bool = False, bos: bool = False):
    """A byte-level tokenizer of 256 + 5 tokens, made here: no file, no network."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    vocabulary = {token: i for i, token in enumerate(specials + alphabet)}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if bos:
        inner.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<|bos|>", eos_token="<|end|>", additional_special_tokens=specials[2:]
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_llama(seed: int = 0, **overrides):
    """A two-layer Llama with random weights over the byte tokenizer's vocabulary, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    values = {
        "vocab_size": 261,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**values, **overrides})).eval()


def one_by_one(model, sequences) -> list[np.ndarray]:
    """Log-probabilities of each continuation's tokens by the model's own forward, one sequence at a time."""
    found = {}
    for context, continuation in sequences:
        text = (*context, *continuation)
        if text not in found:
            ids = torch.tensor([text], device=model.device)
            with torch.inference_mode():
                logits = model(input_ids=ids, use_cache=False).logits[0].double()
            found[text] = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0].cpu().numpy()
    return [found[*context, *continuation][len(context) - 1 :] for context, continuation in sequences]


@contextmanager
def in_float64(model):
    """Yield a copy of a model that computes in float64, also where its code asks for float32."""
    wide = copy.deepcopy(model).double()
    wide.config._experts_implementation = "eager"  # grouped products have no float64
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        for name in ("to", "type"):
            patch.setattr(torch.Tensor, name, _in_float64(getattr(torch.Tensor, name)))
        yield wide


def _in_float64(cast):
    def widened(self, *args, **named):
        args = (torch.float64 if a is torch.float32 else a for a in args)
        return cast(self, *args, **{k: torch.float64 if v is torch.float32 else v for k, v in named.items()})

    return widened


def random_sequences(rng: np.random.Generator, vocabulary: int, count: int = 12, longest: int = 40):
    """(context, continuation) pairs that share prefixes: branches off earlier ones, duplicates included."""
    sequences = [(rng.integers(0, vocabulary, longest // 2).tolist(), rng.integers(0, vocabulary, 3).tolist())]
    for _ in range(count - 1):
        context, continuation = sequences[rng.integers(len(sequences))]
        kept = (context + continuation)[: rng.integers(1, len(context) + len(continuation) + 1)]
        more = rng.integers(0, vocabulary, rng.integers(0, longest - longest // 2)).tolist()
        sequences.append((kept + more, rng.integers(0, vocabulary, rng.integers(1, 5)).tolist()))
    return [*sequences, sequences[0]]


def write_data(path: Path, text: str | bytes) -> Path:
    """Write a data file, packed where its name says so."""
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def shorter_questions(path: Path, words: int = 12, limit: int | None = None) -> Path:
    """Write the bundled questions with the first words of each passage, for examples that only have to run."""
    rows = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()[:limit]]
    for passage in (passage for row in rows for passage in row["ctxs"]):
        passage["text"] = " ".join(passage["text"].split()[:words])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def text_pairs(path: Path = QUESTIONS) -> list[tuple[str, str]]:
    """200 pairs from the bundled questions: shared contexts, trailing spaces, an empty context."""
    from fastreader import load_examples

    pairs = [("", "The capital of France is Paris."), ("", " leading space"), ("Two trailing spaces  ", "then text")]
    for example in load_examples(path):
        for passage in example.passages:
            context = f"{passage.title}\n{passage.text}\n\nQuestion: {example.question}\nAnswer:"
            pairs += [(context, f" {candidate}") for candidate in example.candidates[:2]]
            pairs.append((context + " ", example.candidates[2]))
    return pairs[:200]


def framework(name: str, extra: str):
    """A client of the extra `frameworks`. Its tests are skipped without it, except by `make test-integrations`."""
    if os.environ.get("FASTREADER_REQUIRE_FRAMEWORKS"):
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"install the extra {extra}, or run make test-integrations")
