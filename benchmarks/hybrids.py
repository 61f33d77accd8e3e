"""Compare a hybrid reader over a tree with transformers and its cache, one context at a time.

    python benchmarks/hybrids.py

The reader is a random one of Qwen3.5's kind: hidden 512, 8 layers, three of gated delta rule to one of attention. The
texts have W1's shape: 10 orders after one header, 4 candidates each, 50,480 tokens given. The peer reads each context
once and continues from a copy of its cache for each candidate. CPU seconds are printed too: other programs on the
machine change them less.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from fastreader import Reader
from fastreader.models.passes.recurrent_states import PathStates

RESULTS = Path(__file__).parent / "results" / "hybrids.jsonl"
HEADER, BODIES, BODY, CANDIDATES, CANDIDATE = 5, 10, 1254, 4, 3  # tokens
VOCABULARY = 32_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="+", default=["exact", "fast"])
    parser.add_argument("--bodies", type=int, default=BODIES, help="fewer for a quick look")
    parser.add_argument("--output", type=Path, default=RESULTS, help="results are appended here")
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model, sequences = make_model(), make_sequences(arguments.bodies)
    one_by_one(model, sequences[:CANDIDATES])  # what is made once
    started, worked = time.perf_counter(), time.process_time()
    want = one_by_one(model, sequences)
    theirs = {"peer": time.perf_counter() - started, "peer_cpu": time.process_time() - worked}
    for precision in arguments.precision:
        row = measure(model, sequences, precision, want) | theirs | machine.describe()
        with arguments.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{precision}: {row['computed']:,} of {row['given']:,} tokens computed in {row['seconds']:.1f} s "
            f"({row['cpu']:.1f} s of CPU); transformers one by one {row['peer']:.1f} s "
            f"({row['peer_cpu']:.1f} s): {row['peer'] / row['seconds']:.1f} times; "
            f"{row['recurrent']:.0%} in recurrences, at most {row['apart']:.1e} nats apart, "
            f"{row['state_bytes']:,} bytes a state"
        )


def make_model() -> Any:
    """Return a random model of Qwen3.5's kind in float32."""
    torch.manual_seed(0)
    config = transformers.Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        initializer_range=0.04,
    )
    return transformers.Qwen3_5ForCausalLM(config).eval()


def make_sequences(bodies: int) -> list[tuple[list[int], list[int]]]:
    """Return contexts of one header with candidates that all of them share."""
    rng = np.random.default_rng(0)

    def draw(count: int) -> list[int]:
        tokens: list[int] = rng.integers(2, VOCABULARY, count).tolist()
        return tokens

    header, candidates = draw(HEADER), [draw(CANDIDATE) for _ in range(CANDIDATES)]
    contexts = [header + draw(BODY) for _ in range(bodies)]
    return [(context, candidate) for context in contexts for candidate in candidates]


@torch.inference_mode()
def one_by_one(model: Any, sequences: list[tuple[list[int], list[int]]]) -> list[float]:
    """Return each continuation's log-likelihood by transformers, which reads each context once."""
    found: list[float] = []
    read: Any = None
    for context, continuation in sequences:
        if read is None or read[0] is not context:
            out = model(input_ids=torch.tensor([context]), use_cache=True, logits_to_keep=1)
            read = context, out.past_key_values, out.logits[0]
        cache = copy.deepcopy(read[1])
        after = model(input_ids=torch.tensor([continuation[:-1]]), past_key_values=cache, use_cache=True).logits[0]
        logprobs = torch.cat([read[2], after]).double().log_softmax(-1)
        found.append(float(logprobs.gather(1, torch.tensor(continuation)[:, None]).sum()))
    return found


def measure(model: Any, sequences: list[Any], precision: str, want: list[float]) -> dict[str, Any]:
    """Return counts and seconds of the second of two passes."""
    tokens = Tokenizer(WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token="0", eos_token="1")
    reader = Reader.load((model, tokenizer), device="cpu", precision=precision)
    reader.score(sequences[:CANDIDATES])
    started, worked = time.perf_counter(), time.process_time()
    scores = reader.score(sequences)
    seconds, cpu = time.perf_counter() - started, time.process_time() - worked
    with timed() as spent:
        started = time.perf_counter()
        reader.score(sequences)
        share = sum(spent) / (time.perf_counter() - started)
    return {
        "precision": precision,
        "given": scores.stats.total_tokens,
        "computed": scores.stats.computed_tokens,
        "passes": scores.passes,
        "seconds": seconds,
        "cpu": cpu,
        "recurrent": share,
        "apart": float(np.abs(scores.logprob - np.array(want)).max()),
        "state_bytes": reader.local_model.model.state_bytes,
    }


class timed:
    """Within the block, the seconds of every recurrence and convolution are added to a list."""

    def __enter__(self) -> list[float]:
        spent: list[float] = []
        self.kept = PathStates.scan, PathStates.convolve

        def wrapped(own: Any) -> Any:
            def run(*args: Any) -> Any:
                started = time.perf_counter()
                out = own(*args)
                spent.append(time.perf_counter() - started)
                return out

            return run

        PathStates.scan, PathStates.convolve = map(wrapped, self.kept)  # type: ignore[method-assign]
        return spent

    def __exit__(self, *_: object) -> None:
        PathStates.scan, PathStates.convolve = self.kept  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
