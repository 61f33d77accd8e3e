"""OpenVINO GenAI's prefill of prompts of token ids, as JSON. side_by_side.py starts it.

It runs in a separate environment: pip install openvino-genai, and
side_by_side.py --openvino-python THAT/bin/python --ways "OpenVINO GenAI, prefill only, f32" ... names its interpreter.
The pipeline reads a GGUF file (or a folder that optimum-intel exported) and gives no log-likelihoods of given tokens:
each prompt is read and one token written, whose id tells that the work was the same. Its cache of prompts' beginnings
is on, as it is by default.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai

PROPERTIES: dict[str, dict[str, Any]] = {
    "f32": {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0},
    "int8": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32},  # activations; the rest as OpenVINO chooses
}


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    properties = {**PROPERTIES[asked["precision"]], "INFERENCE_NUM_THREADS": asked["threads"]}
    pipeline = openvino_genai.LLMPipeline(asked["model"], "CPU", **properties)
    prompts = asked["prompts"]
    prefill(pipeline, prompts[0][::-1])  # kernels are compiled when first used; a beginning the cache cannot use
    started = time.perf_counter()
    tokens = [prefill(pipeline, prompt) for prompt in prompts]
    seconds = time.perf_counter() - started
    # The prompt before took the memory and keeps it; so there is no peak to compare.
    told = {"seconds": seconds, "peak_bytes": None, "logprobs": None, "first_tokens": tokens}
    versions = {"openvino": openvino.__version__, "openvino-genai": openvino_genai.__version__}
    print(json.dumps({**told, "computed": sum(map(len, prompts)), "versions": {**versions, "properties": properties}}))


def prefill(pipeline: Any, prompt: list[int]) -> int:
    """Read a prompt and return the likeliest next token."""
    settings = openvino_genai.GenerationConfig(max_new_tokens=1, do_sample=False)
    ids = np.array([prompt], dtype=np.int64)
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    return int(pipeline.generate(inputs, settings).tokens[0][0])


if __name__ == "__main__":
    main()
