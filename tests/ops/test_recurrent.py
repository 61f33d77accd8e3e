"""Recurrences over trees: chunks against the definition, and against transformers on single sequences."""

import importlib

import numpy as np
import pytest
import torch
from recurrent_cases import HEADS, OPS, STATES, initial, operands, random_tree

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops.recurrent import ScanPlan, plan

CPU = torch.device("cpu")


def scanned(op, size, parent, keep, given, outside=0, impl="torch", dtype=torch.float64):
    layout = ScanPlan(parent, np.asarray(keep, dtype=np.int64), CPU)
    start = initial(op, outside, 1, dtype)
    return OPS[op](*(x.to(dtype) for x in given), layout, initial=start, impl=impl)


@pytest.mark.parametrize("branching", [0.0, 0.02, 0.2, 0.6])
@pytest.mark.parametrize("op", OPS)
def test_chunks_equal_the_definition_on_random_trees(op, branching):
    rng = np.random.default_rng(0)
    for seed, size in enumerate([1, 2, 15, 16, 17, 63, 64, 65, 129, 200]):
        outside = seed % 3
        parent = random_tree(rng, size, branching, outside)
        keep = rng.choice(size, min(size, 4), replace=False)
        given = operands(op, size, seed)
        want, states = scanned(op, size, parent, keep, given, outside, "reference")
        got, kept = scanned(op, size, parent, keep, given, outside)
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-10)
        torch.testing.assert_close(kept, states, atol=1e-12, rtol=1e-10)
        # float32 errs by its own rounding, and strided operands change nothing
        narrow, _ = scanned(op, size, parent, keep, [x.mT.contiguous().mT for x in given], outside, dtype=torch.float32)
        torch.testing.assert_close(narrow.double(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("op", OPS)
def test_small_batches_change_nothing(op, monkeypatch):
    parent = random_tree(np.random.default_rng(3), 300, 0.1)
    given = operands(op, 300, 0)
    want, states = scanned(op, 300, parent, [7, 299], given)
    monkeypatch.setattr(plan, "_WORKSPACE", 1)  # a chunk at a time
    got, kept = scanned(op, 300, parent, [7, 299], given)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(kept, states, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("op", OPS)
def test_a_text_may_be_read_in_two_parts(op):
    given = operands(op, 90, 0)
    parent = np.arange(-1, 89)
    want, states = scanned(op, 90, parent, [89], given)
    cut = [x if op == "selective_scan" and i == 2 else x[:40] for i, x in enumerate(given)]
    rest = [x if op == "selective_scan" and i == 2 else x[40:] for i, x in enumerate(given)]
    first, after = OPS[op](*cut, ScanPlan(parent[:40], np.array([39]), CPU))
    after = torch.cat([torch.zeros_like(after), after])  # row 1
    second, last = OPS[op](*rest, ScanPlan(np.append(-3, np.arange(49)), np.array([49]), CPU), initial=after)
    torch.testing.assert_close(torch.cat([first, second]), want)
    torch.testing.assert_close(last, states)


@pytest.mark.parametrize("op", OPS)
def test_no_tokens(op):
    out, kept = scanned(op, 0, np.zeros(0, dtype=np.int64), [], operands(op, 0, 0))
    assert len(out) == 0 and kept.shape == (0, *STATES[op])


@pytest.mark.parametrize("op", OPS)
def test_bad_operands_raise(op):
    given = operands(op, 5, 0)
    parent = np.arange(-1, 4)
    layout = ScanPlan(parent, np.zeros(0, dtype=np.int64), CPU)
    with pytest.raises(InputError, match="expected"):
        OPS[op](*given, ScanPlan(parent[:4], layout.keep, CPU))
    with pytest.raises(InputError, match="initial"):
        OPS[op](*given, ScanPlan(np.array([-3, 0, 1, 2, 3]), layout.keep, CPU), initial=initial(op, 1, 0))
    with pytest.raises(InputError, match="initial"):
        OPS[op](*given, layout, initial=torch.zeros(1, 2))
    with pytest.raises(InputError, match="floating"):
        OPS[op](*given[:-1], given[-1].long(), layout)
    with pytest.raises(InputError, match="gradient"):
        OPS[op](given[0].requires_grad_(), *given[1:], layout)
    with pytest.raises(UnsupportedImplementationError, match="no such implementation"):
        OPS[op](given[0].detach(), *given[1:], layout, impl="flash")


def own(module, function):
    """Return a function of transformers' own code, without the wrapper that looks for kernels."""
    found = getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), function)
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found


LINE = ScanPlan(np.arange(-1, 149), np.array([149]), CPU)


@pytest.mark.parametrize("op", ["gated_delta_rule", "kimi_delta_rule"])
def test_delta_rules_equal_transformers_on_a_sequence(op):
    name = {
        "gated_delta_rule": ("qwen3_next", "torch_chunk_gated_delta_rule"),
        "kimi_delta_rule": ("kimi_linear", "chunk_kimi_delta_attention"),
    }[op]
    query, key, value, gate, beta = operands(op, 150, 0, torch.float32)
    if op == "kimi_delta_rule":  # theirs has no groups
        query, key = (x.repeat_interleave(2, dim=1) for x in (query, key))
    batch = (x[None] for x in (query, key, value))
    want, state = own(*name)(*batch, g=gate[None], beta=beta[None], output_final_state=True)
    got, kept = OPS[op](query * 8**-0.5, key, value, gate, beta, LINE)
    torch.testing.assert_close(got, want[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kept, state, atol=1e-4, rtol=1e-4)


def test_linear_attention_equals_mamba_2_on_a_sequence():
    query, key, value, _ = operands("linear_attention", 150, 0, torch.float32)
    step = torch.rand(150, 4, generator=torch.Generator().manual_seed(0))
    transition = -torch.tensor([0.1, 0.5, 1.0, 2.0])
    scan = own("mamba2", "mamba2_chunk_scan")
    given = (x[None] for x in (value, step))
    want, state = scan(*given, transition, key[None], query[None], chunk_size=32, return_final_states=True)
    got, kept = OPS["linear_attention"](query, key, value * step[..., None], step * transition, LINE)
    torch.testing.assert_close(got, want[0], atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(kept.mT, state, atol=1e-3, rtol=1e-4)


def test_selective_scan_equals_mamba_on_a_sequence():
    x, step, transition, entry, readout = operands("selective_scan", 150, 0, torch.float32)
    scan = own("mamba", "mamba_selective_scan")
    given = (y.T[None] for y in (x, step))
    want, state = scan(*given, transition, entry.T[None], readout.T[None], return_last_state=True)
    got, kept = OPS["selective_scan"](x, step, transition, entry, readout, LINE)
    torch.testing.assert_close(got, want[0].T, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kept, state, atol=1e-4, rtol=1e-4)


def test_linear_recurrence_equals_recurrent_gemma_on_a_sequence():
    x, decay = operands("linear_recurrence", 150, 0, torch.float32)
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

    reset = torch.zeros(1, 150, 1, dtype=torch.bool)
    want, state = RecurrentGemmaRglru._rnn_scan(None, x[None], decay[None], reset, None)
    got, kept = OPS["linear_recurrence"](x, decay, LINE)
    torch.testing.assert_close(got, want[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kept, state, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("op", sorted(HEADS))
def test_strong_decay_overflows_nothing(op):
    query, key, value, gate, *rest = operands(op, 80, 0, torch.float32)
    given = [query, key, value, 500 * gate, *rest]
    parent = random_tree(np.random.default_rng(0), 80, 0.1)
    got, kept = scanned(op, 80, parent, [79], given, dtype=torch.float32)
    want, _ = scanned(op, 80, parent, [79], [x.double() for x in given], impl="reference")
    assert got.isfinite().all() and kept.isfinite().all()
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)
