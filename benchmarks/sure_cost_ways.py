"""The ways in which `sure_cost.py` has SuRe's prompts answered, each in a separate process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from peers import plain_model

from fastreader import Reader

STAGES = ("summaries", "validity", "ranking")
WAYS = {
    "fastreader, fast": ("fastreader", "fast"),
    "fastreader, exact": ("fastreader", "exact"),
    "transformers one by one, bf16": ("transformers", "bfloat16"),
    "transformers one by one, fp32": ("transformers", "float32"),
    "transformers one by one, no cache at all, bf16": ("transformers_uncached", "bfloat16"),
    "transformers one by one, no cache at all, fp32": ("transformers_uncached", "float32"),
}
UNCACHED = [way for way, (kind, _) in WAYS.items() if kind == "transformers_uncached"]
SAME_TYPE = {"fast": "bfloat16", "exact": "float32"}  # of the products, ours and theirs
Run = Callable[[dict[str, Any]], list[Any]]


def child(model: str, work: list[dict[str, Any]], way: str, precision: str) -> dict[str, Any]:
    """Load, warm up, then run all requests once. Seconds by question and stage, and what came out."""
    if way == "fastreader":
        run = fastreader_runner(model, precision)
    else:
        run = transformers_runner(model, getattr(torch, precision), use_cache=way == "transformers")
    warm_up(run, work[0])
    seconds, replies = [], []
    for question in work:
        took, told = {}, {}
        for stage in STAGES:
            started = time.perf_counter()
            told[stage] = run(question[stage])
            took[stage] = time.perf_counter() - started
        seconds.append(took)
        replies.append(told)
    return {"seconds": seconds, "replies": replies}


def warm_up(run: Run, question: dict[str, Any]) -> None:
    """Weights are read from the disk and laid out when first used. That is nobody's time."""
    prompt = question["summaries"]["prompts"][0][:16]
    run({**question["summaries"], "prompts": [prompt], "max_new_tokens": 2})
    run({**question["validity"], "prompts": [(prompt, question["validity"]["prompts"][0][1])]})


def fastreader_runner(model: str, precision: str) -> Run:
    reader = Reader.load(model, precision=precision)

    def run(request: dict[str, Any]) -> list[Any]:
        if not request["max_new_tokens"]:
            return [r.logprob for r in reader.loglikelihood(request["prompts"])]
        texts = reader.generate(request["prompts"], max_new_tokens=request["max_new_tokens"], stop=request["stop"])
        return [generations[0].text for generations in texts]

    return run


def transformers_runner(model: str, dtype: torch.dtype, use_cache: bool) -> Run:
    import transformers
    from plain_folder import folder_of

    from fastreader.models.loading.packaged import PACKAGED

    transformers.utils.logging.disable_progress_bar()
    folder = folder_of(model) if model in PACKAGED else model
    own = plain_model(model, dtype)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def run(request: dict[str, Any]) -> list[Any]:
        if not request["max_new_tokens"]:
            return [scored(own, *pair) for pair in request["prompts"]]
        out = []
        for prompt in request["prompts"]:
            ids = torch.tensor([prompt])
            whole = own.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request["max_new_tokens"],
                do_sample=False,
                use_cache=use_cache,
                stop_strings=request["stop"],
                tokenizer=tokenizer,
                pad_token_id=tokenizer.eos_token_id,
            )
            text = tokenizer.decode(whole[0, len(prompt) :], skip_special_tokens=True)
            out.append(next((text[: text.index(s)] for s in request["stop"] if s in text), text))
        return out

    return run


def scored(own: Any, context: list[int], continuation: list[int]) -> float:
    ids = torch.tensor([context + continuation])
    logits = own(input_ids=ids, use_cache=False).logits[0, len(context) - 1 : -1]
    return float(logits.double().log_softmax(-1).gather(1, ids[0, len(context) :, None]).sum())
