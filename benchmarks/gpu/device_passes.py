"""Time passes and steps on random weights, and compare with float32: `passes.py --seconds N`; rows to $OUT/rows.jsonl."""

import argparse
import time

import device_kernels as kernels
import numpy as np
import torch
from device_kernels import END, attempt, left, write


def seconds_of(call, rounds, warm=2):
    for _ in range(warm):
        call()
    torch.cuda.synchronize()
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - started))
        if not left():
            break
    return taken


def row(suite, case, way, taken, **more):
    write(
        suite=suite, case=case, way=way, milliseconds=float(np.median(taken)), low=min(taken), high=max(taken), **more
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=130)
    a = parser.parse_args()
    END[0] = time.monotonic() + a.seconds
    import bench_pass
    import gpu_device
    from gpu_workloads import SEQUENCES

    from fastreader.core.tree import PrefixTree
    from fastreader.models.tree_model import TreeModel

    rates = gpu_device.rates()
    write(suite="device", **gpu_device.about(), flops=rates.flops, bandwidth=rates.bandwidth)

    class Printed:  # what bench_pass.bench_steps writes to
        def add(self, r):
            write(
                suite=r.suite,
                case=f"{r.case}, {r.model}",
                way=r.way,
                milliseconds=r.milliseconds,
                low=r.low,
                high=r.high,
                floor=r.floor,
            )

    def passes(name, own, precision, workloads, rounds):
        model = attempt(
            f"{name} {precision}", lambda: TreeModel(own, name, precision, bench_pass.PRODUCTS[precision], own=True)
        )
        if model is None:
            return None
        # What the trials at loading accepted on this device: "fused (30 layer, ..." and no reason against graphs.
        write(suite="path", case=f"{name} {precision}", way=model.forward_path, why=model.why_not_graphs)
        for workload in workloads:
            sequences = SEQUENCES[workload]()
            tree = PrefixTree.build(sequences)
            floor = bench_pass.pass_floor(tree, own.config, rates)
            for way, call in bench_pass.ways_of(model, own, sequences, beside=False).items():
                attempt(f"{name} {workload} {precision} {way}", lambda c=call, w=way, f=floor: row(
                    "passes", f"{workload}, {precision}, {name}", w, seconds_of(c, rounds), floor=f))  # fmt: skip
        return model

    def accuracy(name, own, models):
        """Largest and mean distance of a few sequences from transformers in float32, with what it does itself in bfloat16."""
        sequences = [(c[:400], k) for c, k in SEQUENCES["W1"]()[:12]]
        tree = PrefixTree.build(sequences)
        import copy

        wide = copy.deepcopy(own).float()
        truth, plain = [], []
        for net, found in ((wide, truth), (own, plain)):
            with torch.inference_mode():
                for context, answer in sequences:
                    ids = torch.tensor([context + answer], device="cuda")
                    logs = net(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
                    found.append(logs[len(context) - 1 : -1].gather(1, ids[0, len(context) :, None])[:, 0].cpu())
        truth, plain = (torch.cat(x).double().numpy() for x in (truth, plain))
        del wide
        write(
            suite="accuracy",
            case=name,
            way="transformers bf16",
            mean=float(np.abs(plain - truth).mean()),
            largest=float(np.abs(plain - truth).max()),
        )
        for precision, model in models.items():
            if model is not None:
                got = model.score(tree).logprob.double().cpu().numpy()[tree.pairs]
                write(
                    suite="accuracy",
                    case=name,
                    way=precision,
                    mean=float(np.abs(got - truth).mean()),
                    largest=float(np.abs(got - truth).max()),
                )

    name = "smollm2-135m"
    own = attempt("model", lambda: bench_pass.random_model(name))
    if own is not None:
        fast = passes(name, own, "fast", ("W1", "W2"), 9)
        if fast is not None:
            for count in (1, 24):
                attempt(f"steps {count}", lambda c=count: bench_pass.bench_steps(Printed(), fast, own, name, c, rates))
            attempt("profile", lambda: open(f"{kernels.OUT.parent}/profile_pass.txt", "w").write(
                bench_pass.profiled(bench_pass.ways_of(fast, own, SEQUENCES["W1"](), beside=False)["packed"])))  # fmt: skip
        high = passes(name, own, "high", ("W1",), 5)
        attempt("accuracy", lambda: accuracy(name, own, {"fast": fast, "high": high}))
        del own, fast, high
        torch.cuda.empty_cache()
    name = "llama-3.1-8b"
    own = attempt("model", lambda: bench_pass.random_model(name))
    if own is not None:
        fast = passes(name, own, "fast", ("W1",), 3)
        if fast is not None:
            for count in (1, 24):
                attempt(f"steps {count}", lambda c=count: bench_pass.bench_steps(Printed(), fast, own, name, c, rates))
        passes(name, own, "high", ("W1",), 2)


if __name__ == "__main__":
    main()
