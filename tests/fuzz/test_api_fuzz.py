"""Every public callable with wrong arguments: it succeeds, or raises an error of ours that names the argument.

The default suite draws a few hundred calls from a fixed seed. The long form, `make fuzz`, makes 15,000; the variables
FASTREADER_FUZZ_CALLS and FASTREADER_FUZZ_SEED change both, and FASTREADER_FUZZ_ONLY names the callables.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import inspect
import itertools
import os
import random
import re
import resource
import signal
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hostile
import pytest
from api_rows import ENDS_WITH, ROWS, WITHOUT, World
from public import callables, parameters

from fastreader.errors import ContextOverflowError, FastreaderError, OutOfBudgetError

CALLS = int(os.environ.get("FASTREADER_FUZZ_CALLS", "400"))
SEED = int(os.environ.get("FASTREADER_FUZZ_SEED", "0"))
ONLY = os.environ.get("FASTREADER_FUZZ_ONLY", "")
SECONDS = 30  # of one call, on a machine that may be busy; the slowest base call takes about 1
MEMORY = 3 * 2**30  # bytes that one call may take beyond what the process has
LAZY = (
    "score_permutations",
    "data.iter_examples",
    "noise.swapped_passages",
    "sure.answer_many",
    "Session.generate_steps",
)
ITEMS = 20  # of what they yield


class TooSlow(BaseException):
    """A call that ran past its time. Not an Exception, so that no handler in the package can catch it."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no name of a model is looked up
        yield World(tmp_path_factory.mktemp("fuzz"))


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Bound the time and the memory of the block."""

    def stop(*_: object) -> None:
        raise TooSlow

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def arguments(world: World, name: str, call: Any) -> tuple[Any, dict[str, Any]]:
    """Return the callable of a row, bound to its object, and its base arguments."""
    row = ROWS[name](world)
    if isinstance(row, dict):
        return call, dict(row)
    return getattr(row[0], name.rpartition(".")[2]), dict(row[1])


def run(name: str, call: Any, values: dict[str, Any]) -> Any:
    """Call with arguments by name. The values of `*names` are passed by place."""
    values = dict(values)
    spread = [n for n, kind in parameters(call).items() if kind is inspect.Parameter.VAR_POSITIONAL]
    places = values.pop(spread[0]) if spread else ()
    lazy = name in LAZY
    with warnings.catch_warnings(), limits():
        warnings.simplefilter("ignore")
        result = call(*places, **values)
        return list(itertools.islice(result, ITEMS)) if inspect.isgenerator(result) and lazy else result


PLACES = {
    "path", "folder", "corpus", "queries", "run", "qrels", "model", "reader", "encoder", "output", "passages", "found",
}  # fmt: skip
ALIASES = {  # parameters of parsers: what their text means has another word in messages
    "eor.load_texts": {"found": "texts"},
    "save_examples": {"examples": "example"},
    "study.Study.of": {"values": "study"},
    "study.Study.stored": {"values": "study"},
    "sure.variants.find_method": {"name": "method"},
    "eor.as_source": {"found": "source"},
    "eor.parse": {"text": "retriever|specification"},
    "eor.similarity.resolve": {"found": "similarity"},
    "eor.Answers.from_dict": {"values": "predictions"},
    "eor.Voter.from_dict": {"similarities": "similarity"},
    "eor.Voter.load": {"similarities": "similarity"},
    "eor.Voter.vote": {"answers": "retriever_weights"},  # of another number of retrievers
    "noise.DistractorPool.draw": {"accept": "unrelated"},
    "noise.RandomWords.draw": {"accept": "hold an answer"},
    "noise.ask": {"layouts": "layout"},
    "noise.ask_cost": {"layouts": "layout"},
    "noise.LayoutSpec.parse": {"name": "layout"},
    "noise.baseline_of": {"layout": "layout"},
    "noise.layout": {"spec": "layout"},
    "permutations.resolve": {"spec": "permutations|count|squares"},
}


def is_named(called: str, name: str, value: Any, message: str, fellows: Iterable[str]) -> bool:
    """Return whether a message names an argument.

    It does by the argument's name; by the value of a path or another name that is looked up; or, for a dictionary or a
    record, by the key or field at fault. It may also name one of `fellows`, the parameters that the value does not fit.
    """
    words = [name, *ALIASES.get(called, {}).get(name, name).split("|"), *fellows]
    if isinstance(value, Mapping):
        words += [form for key in value for form in (str(key), repr(key).strip("'"))]
    elif dataclasses.is_dataclass(value):
        words += [field.name for field in dataclasses.fields(value)]
    by_name = any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", message) for word in words if word.strip())
    return by_name or (name in PLACES and isinstance(value, (str, os.PathLike)) and str(value) in message)


def outcome(called: str, call: Any, values: dict[str, Any], changed: list[str]) -> tuple[str, str]:
    """Run a call and say how it ended. The second value shows the error."""
    try:
        run(called, call, values)
    except FastreaderError as error:
        # What is too large for the context or the memory is so because of all arguments together.
        too_large = isinstance(error, (ContextOverflowError, OutOfBudgetError))
        named = too_large or any(is_named(called, name, values[name], str(error), parameters(call)) for name in changed)
        return ("refused" if named else "unnamed"), f"{type(error).__name__}: {error}"
    except TooSlow:
        return "too slow", ""
    except BaseException as error:
        frame = inspect.trace()[-1]
        ours = [f"{Path(f.filename).name}:{f.lineno}" for f in inspect.trace() if "/fastreader/" in f.filename]
        return "foreign", f"{type(error).__name__}: {error} at {ours[-3:]} {Path(frame.filename).name}:{frame.lineno}"
    return "succeeded", ""


def shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except BaseException:
        return f"a {type(value).__name__}"


def test_every_public_callable_has_a_row():
    missing = callables().keys() - ROWS.keys() - WITHOUT
    assert not missing, f"add base arguments of {sorted(missing)} to ROWS in api_rows.py"
    assert not ROWS.keys() - callables().keys()


@pytest.mark.parametrize("name", sorted(ROWS))
@pytest.mark.long(keep=90)
def test_base_arguments_succeed_and_cover_all_parameters(world, name):
    call, values = arguments(world, name, callables()[name])
    assert parameters(call).keys() <= values.keys()
    expected = pytest.raises(ENDS_WITH[name]) if name in ENDS_WITH else contextlib.nullcontext()
    with expected:
        run(name, call, values)


def test_wrong_arguments_are_refused_by_name(world, tmp_path, monkeypatch):
    found = callables()
    names = [name for name in sorted(ROWS) if re.search(ONLY, name)]
    generator = random.Random(SEED)
    counts: collections.Counter[str] = collections.Counter()
    failures: dict[str, str] = {}
    for index in range(CALLS):
        (tmp_path / str(index)).mkdir()
        monkeypatch.chdir(tmp_path / str(index))  # a hostile text may be a path to write to, or to read again
        name = generator.choice(names)
        call, values = arguments(world, name, found[name])
        changed = generator.sample(sorted(values), min(len(values), 1 + (generator.random() < 0.2)))
        spread = [n for n, kind in parameters(call).items() if kind is inspect.Parameter.VAR_POSITIONAL]
        drawn = {each: generator.choice(hostile.values()) for each in changed}
        values |= {each: (value,) if each in spread else value for each, value in drawn.items()}
        call_text = ", ".join(f"{each}={shown(value)}" for each, value in drawn.items())
        kind, message = outcome(name, call, values, changed)
        counts[kind] += 1
        if kind not in ("succeeded", "refused"):
            failures.setdefault(f"{name} {message[:90]}", f"{kind}: {name}({call_text}): {message}")
    print(f"\n{CALLS:,} calls of {len(names)} callables, seed {SEED}: {dict(counts)}")
    assert not failures, f"{len(failures)} kinds of failure, {dict(counts)}\n" + "\n".join(sorted(failures.values()))
