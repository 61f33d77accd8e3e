"""Time what the host does for a pass on a GPU, with a pretended device on which nothing is computed.

    python benchmarks/gpu/host_time.py [--model smollm2-135m] [--workload W1] [--passes 100]

It prints the launches of a layer, the copies of a pass, and milliseconds of the host outside launches: the sum of the
least times before the first layer, of each layer, and from the last layer on, so that other work on the machine counts
as little as possible.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from gpu_workloads import WORKLOADS
from pretended import META, Launches, launching, pretended, to_meta
from transformers import AutoModelForCausalLM

from fastreader.core.tree import PrefixTree
from fastreader.models.adapter import TreeModel
from fastreader.models.fused import FusedLayer
from fastreader.models.packaged import folder_of


def pretended_model(folder: str, precision: str = "fast") -> TreeModel:
    """Return a model as it would be on a GPU, on the meta device; call it within `pretended`."""
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return on_meta(TreeModel(loaded, "pretended", precision, {"fast": "bf16", "high": "bf16x3"}[precision], own=True))


def on_meta(model: TreeModel) -> TreeModel:
    """Move a model that was made within `pretended` to the meta device."""
    to_meta(model.model)
    model.head, model.device = model.model.get_output_embeddings(), META
    return model


def milliseconds(model: TreeModel, tree: PrefixTree, passes: int) -> tuple[float, float, float]:
    """Return least host milliseconds before the first layer, of an inner layer, and from the last layer on."""
    layers = [module for module in model.model.modules() if isinstance(module, FusedLayer)]
    stamps: list[float] = []
    hooks = [layer.register_forward_pre_hook(lambda *_: stamps.append(time.perf_counter())) for layer in layers]
    rows = []
    with launching():
        for _ in range(passes):
            stamps[:] = [time.perf_counter()]
            model.score(tree)
            rows.append(np.diff([*stamps, time.perf_counter()]))
    for hook in hooks:
        hook.remove()
    least = 1e3 * np.min(rows, axis=0)
    return float(least[0]), float(least[1:-1].mean()), float(least[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--workload", default="W1", choices=WORKLOADS)
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--precision", default="fast", choices=["fast", "high"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tree = WORKLOADS[arguments.workload]()
    with pretended():
        model = pretended_model(str(folder_of(arguments.model)), arguments.precision)
        with launching():
            model.score(tree)  # the shapes of attention are known from here on
        launches = Launches()
        with launching(launches):
            model.score(tree)
        first, layer, last = milliseconds(model, tree, arguments.passes)
    count = len(model.windows)
    names = [name for name, _ in launches.calls]
    attention = [i for i, name in enumerate(names) if name == "tree_attention_kernel"]
    print(f"launches of a layer: {', '.join(names[attention[0] + 1 : attention[1] + 1])}")
    print(f"launches of a pass: {len(names)}, copies to the device: {len(launches.uploads)}")
    total = first + layer * (count - 1) + last
    print(f"host ms: {first:.2f} before, {layer:.3f} a layer, {last:.2f} from the last layer on; {total:.1f} in all")


if __name__ == "__main__":
    main()
