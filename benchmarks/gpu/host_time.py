"""Time what the host does for a pass and for a step of writing on a GPU, with a pretended device that computes nothing.

    python benchmarks/gpu/host_time.py [--model smollm2-135m] [--workload W1] [--passes 100]

It prints the launches of a layer, the copies of a pass, and milliseconds of the host's processor outside launches, the
least of all passes: of packing, of a pass (before the first layer, of each layer, from the last layer on), of the same
pass as a replayed CUDA graph, and of a step of writing, launched and replayed.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from gpu_workloads import SEQUENCES
from pretended import META, Launches, launching, pretended, to_meta
from torch import Tensor
from transformers import AutoModelForCausalLM

from fastreader.core.options import StepOptions
from fastreader.core.tree import PrefixTree
from fastreader.models.passes.cuda_graphs import VARIABLE
from fastreader.models.passes.pass_graphs import PassGraphs
from fastreader.models.rewriting.fused import FusedLayer
from fastreader.models.tree_model import TreeModel
from fastreader.reader.generation import gpu_decoding
from fastreader.reader.generation.text_so_far import DecodedText

sys.path.append(str(Path(__file__).parents[1]))
from plain_folder import folder_of

PROMPT, TOKENS = 700, 40  # of a text to write, and written


def pretended_model(folder: str, precision: str = "fast") -> TreeModel:
    """Return a model as it would be on a GPU, on the meta device. Call it within `pretended`."""
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return on_meta(TreeModel(loaded, "pretended", precision, {"fast": "bf16", "high": "bf16x3"}[precision], own=True))


def on_meta(model: TreeModel) -> TreeModel:
    """Move a model that was made within `pretended` to the meta device."""
    to_meta(model.model)
    model.head, model.device = model.model.get_output_embeddings(), META
    model.devices = (META,)
    return model


class Nothing:
    """A graph whose replay launches nothing, see `models.passes.cuda_graphs.Recorded`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result = function()

    def replay(self) -> None:
        return


class NoValues:
    """Takes the place of `gpu_decoding.Readback`, since the meta device has no values."""

    def __init__(self, values: Tensor) -> None:
        self.shape = values.shape

    def get(self) -> np.ndarray:
        return np.zeros(self.shape)


def least(call: Callable[[], Any], repeats: int) -> float:
    """Return the least milliseconds of the processor that a call takes."""
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        taken.append(time.process_time() - started)
    return 1e3 * min(taken)


def pass_milliseconds(model: TreeModel, tree: PrefixTree, passes: int) -> tuple[float, float, float]:
    """Return least host milliseconds before the first layer, of an inner layer, and from the last layer on."""
    layers = [module for module in model.model.modules() if isinstance(module, FusedLayer)]
    stamps: list[float] = []
    hooks = [layer.register_forward_pre_hook(lambda *_: stamps.append(time.process_time())) for layer in layers]
    rows = []
    with launching():
        for _ in range(passes):
            stamps[:] = [time.process_time()]
            model.score(tree)
            rows.append(np.diff([*stamps, time.process_time()]))
    for hook in hooks:
        hook.remove()
    fewest = 1e3 * np.min(rows, axis=0)
    return float(fewest[0]), float(fewest[1:-1].mean()), float(fewest[-1])


def step_milliseconds(model: TreeModel, texts: int, replayed: bool) -> float:
    """Return least host milliseconds of a generation step after separate prompts, reading the tokens included."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 100, PROMPT).tolist() for _ in range(texts)]
    tree = PrefixTree.build([(prompt, []) for prompt in prompts])
    local_model: Any = SimpleNamespace(model=model, lock=threading.Lock(), end_tokens=frozenset([9]))
    options, leaves = StepOptions(max_new_tokens=TOKENS), np.sort(tree.leaves)
    stamps: list[float] = []
    step = gpu_decoding.DeviceTexts.step

    def stamped(self: gpu_decoding.DeviceTexts) -> Any:
        stamps.append(time.process_time())
        return step(self)

    with (
        launching(),
        patch.object(gpu_decoding, "Readback", NoValues),
        patch.object(gpu_decoding, "graphs_wanted", lambda: replayed),
        patch.object(gpu_decoding, "recorder", lambda device: Nothing),
        patch.object(gpu_decoding.DeviceTexts, "step", stamped),
    ):
        key_values = model.new_key_values(tree, leaves_only=True)
        model.hidden(tree, key_values=key_values, rows=tree.leaves)
        rows = [DecodedText(prompt, TOKENS, None, None, tokens=[1]) for prompt in prompts]
        decoding = gpu_decoding.Decoding(local_model, options, lambda count: None)
        list(gpu_decoding.decode_on_device(decoding, tree, key_values, leaves, rows))
    return 1e3 * float(np.min(np.diff(stamps)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--workload", default="W1", choices=SEQUENCES)
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--precision", default="fast", choices=["fast", "high"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sequences = SEQUENCES[arguments.workload]()
    tree = PrefixTree.build(sequences)
    with pretended():
        model = pretended_model(str(folder_of(arguments.model)), arguments.precision)
        with launching():
            model.score(tree)  # the shapes of attention are known from here on
        launches = Launches()
        with launching(launches):
            model.score(tree)
        first, layer, last = pass_milliseconds(model, tree, arguments.passes)
        recorded = PassGraphs(model.device, model._shapes, model.scored, 0, record=Nothing)
        with launching():
            for _ in range(2):
                recorded.score(tree)
            replay = least(lambda: recorded.score(tree), arguments.passes)
        steps = {(texts, how): step_milliseconds(model, texts, how) for texts in (1, 24) for how in (False, True)}
    count = len(model.windows)
    names = [name for name, _ in launches.calls]
    attention = [i for i, name in enumerate(names) if name == "tree_attention_kernel"]
    print(f"launches of a layer: {', '.join(names[attention[0] + 1 : attention[1] + 1])}")
    print(f"launches of a pass: {len(names)}, copies to the device: {len(launches.uploads)}")
    print(f"packing: {least(lambda: PrefixTree.build(sequences), arguments.passes):.2f} ms")
    total = first + layer * (count - 1) + last
    parts = f"{first:.2f} before, {layer:.3f} a layer, {last:.2f} from the last layer on"
    print(f"a pass: {total:.1f} ms: {parts}; replayed (unless {VARIABLE}=0) {replay:.2f} ms")
    for (texts, replayed), taken in steps.items():
        print(f"a step of {texts} texts, {'replayed' if replayed else 'launched'}: {taken:.2f} ms")


if __name__ == "__main__":
    main()
