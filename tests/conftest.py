"""Shared fixtures: a tiny random reader, and the packaged one."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import hypothesis
import pytest
from helpers.support import PACKAGED, byte_tokenizer, tiny_llama

from fastreader.models.check import probe
from fastreader.models.loading.packaged import folder_of, is_cached
from fastreader.ops.dispatch import SERVED

_LOADED = {}  # packaged readers by how they were loaded
# A first call loads or compiles something, and a machine may be busy: seconds are for benchmarks to judge.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the cases that the marker `long` leaves out")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long cases unless they are asked for, and begin with the longest files.

    A process that works on a long file alone at the end would leave the others idle.
    """
    items.sort(key=lambda item: not item.path.name.endswith("suites.py"))
    if config.getoption("--long") or any("::" in argument for argument in config.args):
        return
    if left_out := long_cases(items):
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def long_cases(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cases of tests marked `long` but `keep` (0) of each test, evenly spaced."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for cases in tests.values():
        keep = cases[0].get_closest_marker("long").kwargs.get("keep", 0)
        kept = {len(cases) * place // keep for place in range(keep)}
        left_out.update(case for place, case in enumerate(cases) if place not in kept)
    return left_out


def pytest_collection_finish() -> None:
    """Leave what is imported and collected by now out of later collections of garbage, each of which passes over it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter's last collection find everything, as some libraries complain of what it leaves."""
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def shorter_check(request):
    """Let the check at load read shorter long texts in tests of other things, which load thousands of tiny readers."""
    if request.path.name in ("test_check.py", "test_packaged.py"):
        yield
        return
    with patch.object(probe, "_LONG", 64):
        yield


@pytest.fixture(scope="module")
def fewer_resamples():
    """Calibrations by commands and studies, which take 200 resamples, take 40: their intervals are not tested there."""
    from fastreader.moi.calibration import calibrate as module

    bootstrap = module.bootstrap
    with patch.object(module, "bootstrap", lambda best, data, count, rng: bootstrap(best, data, min(count, 40), rng)):
        yield


@pytest.fixture(scope="session")
def packaged_folder() -> Path:
    """The packaged reader's folder. `make test` pulls it first and sets FASTREADER_REQUIRE_MODEL."""
    if not is_cached(PACKAGED):
        if os.environ.get("FASTREADER_REQUIRE_MODEL"):
            pytest.fail(f"{PACKAGED} is not in the cache")
        pytest.skip(f"needs the packaged reader: fastreader models pull {PACKAGED}")
    return folder_of(PACKAGED)


def _packaged(options, load):
    """Return a packaged reader that was loaded by these options before, "auto" being the CPU if there is no GPU."""
    import torch

    if options.device == "auto" and options.device_map is None and not torch.cuda.is_available():
        options = replace(options, device="cpu")
    key = repr(options)
    if key not in _LOADED:
        _LOADED[key] = load(options)
        _LOADED[key].close = lambda: None
    return _LOADED[key]


@pytest.fixture(scope="session")
def packaged_reader(packaged_folder):
    """The packaged reader in float32."""
    from fastreader import Reader
    from fastreader.models.loading.options import LoadOptions

    return _packaged(LoadOptions(PACKAGED, "cpu", precision="exact"), Reader._loaded)


@pytest.fixture(scope="session")
def packaged_model(packaged_folder, packaged_reader):
    """The packaged model in float32 as transformers runs it, with the values that the reader's weights have."""
    from fastreader.models.loading.load import load
    from fastreader.models.loading.options import LoadOptions

    dtype = "float32" if packaged_reader.arithmetic.formats else "auto"
    return load(LoadOptions(PACKAGED, "cpu", dtype, "exact")).model.float().eval()


@pytest.fixture
def nothing_served():
    """Ops choose again, for tests that take an implementation away."""
    with patch.dict(SERVED, clear=True):
        yield


@pytest.fixture(scope="session")
def tiny_reader():
    """A tiny random reader with a chat template, float32."""
    from fastreader import Reader

    return Reader.load((tiny_llama(), byte_tokenizer(chat=True)), device="cpu", precision="exact")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a tiny random chat model."""
    folder = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(folder)
    byte_tokenizer(chat=True).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def loaded_once():
    """`Reader.load` of a packaged reader returns one loaded before by equal arguments, for tests of something else."""
    from fastreader import Reader

    original = Reader._loaded

    def load(options):
        if str(options.model) != PACKAGED:
            return original(options)
        return _packaged(options, original)

    with patch.object(Reader, "_loaded", load):
        yield
