"""Tiny random rerankers as sentence-transformers and transformers save them."""

import torch
import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore

from helpers.families import COMMON, FAMILIES, tiny
from helpers.support import byte_tokenizer

# Query and document in one user turn after an instruction, as in Qwen3-Reranker.
ONE_TURN = (
    "{% set instruction = messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | "
    "default('Judge the document.') %}{{ '<|im_start|>user\n<Instruct>: ' ~ instruction ~ '\n<Query>: ' ~ (messages | "
    "selectattr('role', 'eq', 'query') | map(attribute='content') | first) ~ '\n<Document>: ' ~ (messages | "
    "selectattr('role', 'eq', 'document') | map(attribute='content') | first) ~ '<|im_end|>\n' }}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Query as system and document as user, stripped, with no place for an instruction.
TWO_TURNS = (
    "{% for m in messages %}{{ '<|im_start|>' ~ {'query': 'system', 'document': 'user'}[m.role] ~ '\n' ~ "
    "(m.content | trim) ~ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def logit_score(folder, family, *, false=True, template=ONE_TURN, prompts=None, name=None, activation=None, seed=0):
    """Save a reranker by the labels "a" and "b", and return it as sentence-transformers loads it."""
    tiny(family, seed, initializer_range=0.1).save_pretrained(folder / "base")
    tokenizer = byte_tokenizer(chat=True)
    tokenizer.chat_template = template
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder / "base")
    generation = {"add_generation_prompt": True} if template is not TWO_TURNS else {}
    text = Transformer(
        str(folder / "base"), transformer_task="text-generation", processing_kwargs={"chat_template": generation}
    )
    labels = [tokenizer.convert_tokens_to_ids(label) for label in "ab"]
    made = CrossEncoder(
        modules=[text, LogitScore(labels[0], labels[1] if false else None)],
        prompts=prompts,
        default_prompt_name=name,
        activation_fn=activation,
    )
    made.save_pretrained(str(folder / "saved"))
    return CrossEncoder(str(folder / "saved")), folder / "saved"


def classifier(folder, family, labels=1, bias=False, seed=0, **config):
    """Save a decoder with a classification head, and return it as sentence-transformers loads it."""
    torch.manual_seed(seed)
    values = {**COMMON, **FAMILIES.get(family, {}), "num_labels": labels, **config}
    made = getattr(transformers, f"{family}ForSequenceClassification")(
        getattr(transformers, f"{family}Config")(**values)
    )
    made.save_pretrained(folder / "head")
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder / "head")
    return CrossEncoder(str(folder / "head")), folder / "head"
