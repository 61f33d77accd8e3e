"""dry_run: what the methods of a study would cost, from tokenizers alone, and which of them cannot answer."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.checked import checked, checked_methods
from fastreader.core.protocol import Results
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.data.answer_cache import Cache
from fastreader.errors import FastreaderError
from fastreader.moi.baselines import METHODS
from fastreader.reader.programs.requests import Program, Write
from fastreader.study.cached_reader import CachedReader
from fastreader.study.cells import Cell, Row, cells_of, questions_of, run_group
from fastreader.study.config import Study, model_of
from fastreader.study.method import Answered, Batch, StudyMethod
from fastreader.study.methods.eor import EorMethod
from fastreader.study.methods.moi import OrderMethod
from fastreader.study.methods.sure import SureMethod
from fastreader.study.models import load_options
from fastreader.study.registry import check
from fastreader.sure.settings import Settings
from fastreader.sure.templates import lettered

if TYPE_CHECKING:
    from fastreader.study.dry_reader import DryReader

Bounds = tuple[int, int]
"""A number with replies that are empty, and with replies as long as allowed."""
_FIRST = 3  # questions after which a method that has answered none of them is tried on the others


@checked_methods
@dataclass(frozen=True)
class DryCost:
    """What a method would cost, over all questions and seeds.

    Tokens are counted for each question as if it ran alone; a run shares more.

    Attributes:
        method: its name in the study.
        reader: name of the reader.
        answers: number of answers.
        prompts: number of prompts continued and texts scored.
        total_tokens: tokens of all prompts and scored texts, as read without sharing.
        computed_tokens: tokens of these that go through the model.
        new_tokens: tokens generated.
        left_out: number of questions that lack something the method needs.
        over_long: number of these whose prompt exceeds the reader's context.
        failed: number of questions that end in an error.
        problem: the first error or lack, or "".
    """

    method: str
    reader: str
    answers: int = 0
    prompts: Bounds = (0, 0)
    total_tokens: Bounds = (0, 0)
    computed_tokens: Bounds = (0, 0)
    new_tokens: Bounds = (0, 0)
    left_out: int = 0
    over_long: int = 0
    failed: int = 0
    problem: str = ""

    @property
    def useless(self) -> bool:
        """Whether the method answers no question."""
        return self.answers == 0

    @property
    def warning(self) -> str:
        """A sentence about a method that answers no question."""
        what = "fails for" if self.failed else "leaves out"
        return f"method {self.method!r} {what} every question: {self.problem}"

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as JSON values."""
        return asdict(self)


@dataclass
class _Counts:
    """Sums of one cell's rows under one kind of replies."""

    answers: int = 0
    left_out: int = 0
    over_long: int = 0
    failed: int = 0
    problem: str = ""
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("total", "computed", "new", "prompts"), 0))

    def add(self, row: Row) -> None:
        """Add a row of a study."""
        values = row[2]
        self.problem = self.problem or values["error"] or values["left_out"] or ""
        self.failed += values["error"] is not None
        self.left_out += values["left_out"] is not None
        self.over_long += values["over_long"] is not None
        self.answers += values["answer"] is not None
        spent = values["tokens"]
        for name in ("total", "computed"):
            self.tokens[name] += (spent[f"{name}_tokens"] or 0) - spent["new_tokens"]
        self.tokens["new"] += spent["new_tokens"]

    @property
    def read(self) -> dict[str, int]:
        """The tokens without generated ones."""
        return {name: count for name, count in self.tokens.items() if name != "new"}


class CountingReader(CachedReader):
    """A `CachedReader` without a cache, which repeats what takes no time, that counts prompts and scored texts.

    Attributes:
        requests: their number since it was made.
    """

    requests = 0

    def loglikelihood(self, requests: Iterable[Any], **options: Any) -> Any:
        """Score as `CachedReader.loglikelihood`."""
        pairs = list(requests)
        found = super().loglikelihood(pairs, **options)
        self.requests += len(pairs)
        return found

    def generate(self, prompts: Iterable[Any], **options: Any) -> Any:
        """Generate as `CachedReader.generate`."""
        texts = list(prompts)
        found = super().generate(texts, **options)
        self.requests += len(texts) * options.get("n", 1)
        return found

    def relevance_scores(self, pairs: Iterable[tuple[str, str]], **options: Any) -> Any:
        """Score as `CachedReader.relevance_scores`."""
        listed = list(pairs)
        found = super().relevance_scores(listed, **options)
        self.requests += len(listed)
        return found

    def _items(self, requests: list[Any], options: Any, call: Any, pack: Any, distinct: bool = True) -> Results[Any]:
        answered = call(requests)
        return Results([pack(item) for item in answered], answered.stats, answered.passes, answered.seconds)

    def _note(self, pairs: Sequence[Any], found: Results[Any], new_tokens: int = 0, n: int = 1) -> TreeStats:
        for meter in (self.total, *self._meters):
            meter.add(found.stats, found.stats, 0.0, new_tokens)
        return found.stats


@dataclass(frozen=True)
class _Dry(StudyMethod):
    """A method whose replies are placeholders, the longest ones in the form that its next step needs."""

    method: StudyMethod
    longest: bool

    def programs(self, batch: Batch) -> list[Program[Answered]]:
        """Return the method's programs, whose candidates of SuRe are placeholders."""
        method = _without_models(self.method)
        try:
            programs = method.programs(batch)
        except FastreaderError as error:  # ends the run; here it is the error of each question
            return [_raising(error) for _ in batch.examples]
        if not (self.longest and isinstance(method, SureMethod)):
            return programs
        return [_with_candidates(program, method.settings) for program in programs]


def _raising(error: FastreaderError) -> Program[Answered]:
    yield from ()  # a program without requests
    raise error


def _without_models(method: StudyMethod) -> StudyMethod:
    """Return a method that loads no cross-encoder, encoder or judge, whose passes are not the reader's."""
    if isinstance(method, EorMethod):
        return replace(method, voter={**method.voter, "similarities": ("exact",)}, saved=None)
    if isinstance(method, OrderMethod) and "model" in method.method.needs:
        return replace(method, method=METHODS["retriever"])
    if isinstance(method, SureMethod) and isinstance(method.settings.encoder, str):
        return replace(method, settings=replace(method.settings, encoder=_alike))
    return method


def _alike(texts: Sequence[str]) -> Any:
    """Encode all texts alike: float32 [n, 1]."""
    return np.ones((len(texts), 1), dtype=np.float32)


def _with_candidates(program: Program[Answered], settings: Settings) -> Program[Answered]:
    """Run a program of SuRe, and give it `settings.k` candidates that are as long as they may be."""
    words = min(settings.longest_candidate, settings.max_candidate_tokens // settings.k)
    names = (" ".join([f"w{i}"] + ["the"] * (words - 1)) for i in range(settings.k))
    listed = ", ".join(lettered(list(names)))
    replies: Any = None
    with suppress(StopIteration):
        while True:
            try:
                request = program.send(replies)
            except StopIteration as end:
                answered: Answered = end.value
                break
            replies = yield request
            if isinstance(request, Write) and request.stage == "candidates":
                replies = [[replace(each, text=listed) for each in texts] for texts in replies]
    return answered


class DryModels:
    """Readers without weights by name, each loaded at its first use.

    Args:
        load: returns one by name.
        longest: whether their replies are as long as allowed.
        max_batch_tokens: see `CachedReader`.
    """

    def __init__(
        self, load: Callable[[str], DryReader], *, longest: bool = True, max_batch_tokens: int | None = None
    ) -> None:
        self._load, self.longest, self._limit = load, longest, max_batch_tokens
        self._unused = Cache(Path(":memory:"))
        self._opened: dict[str, CountingReader] = {}
        self._read: dict[str, DryReader] = {}

    def open(self, name: str) -> CountingReader:
        """Return a reader that counts."""
        if name not in self._opened:
            reader = copy.copy(self.reader(name))
            reader.longest = self.longest
            self._opened[name] = CountingReader(reader, self._unused, self._limit)
        return self._opened[name]

    def reader(self, name: str) -> DryReader:
        """Return the reader itself."""
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def with_empty_replies(self) -> DryModels:
        """Return the same readers, whose replies are empty."""
        return DryModels(self.reader, longest=False, max_batch_tokens=self._limit)

    @property
    def requests(self) -> int:
        """Number of prompts and scored texts of all readers."""
        return sum(reader.requests for reader in self._opened.values())


@checked
def dry_run(
    study: Study,
    *,
    load: Callable[[str], DryReader] | None = None,
    questions: Iterable[Any] | None = None,
) -> list[DryCost]:
    """Return what each method of a study would cost with each reader, without loading weights or writing files.

    Every method runs by its own code with a `DryReader`, whose replies are placeholders. Bounds are of empty replies,
    after which SuRe has no candidates, and of replies as long as allowed, all different; if no later prompt holds a
    reply, only `new_tokens` differ. Where scores rank the passages of a prompt (the best one of `sure:top1`, the chunks
    of @RR), they keep the retriever's order for the first bound, so that @RR@3 repeats the prompt of @3, and have a
    random order for the second; a reader's own ranking is in between. With a calibration, MoI with `stopping` has the
    fewest rounds in both. Not counted: replies of EoR that are written again because they began with an empty line,
    cross-encoders, sentence encoders, similarities and measures by a model, conflicts, attribution and attention.

    Args:
        study: the study.
        load: returns a reader by name, instead of `DryReader.load`.
        questions: see `run_study`.

    Raises:
        InputError: if a method or an option is unknown, or there are no questions.
        FastreaderError: if a tokenizer or a config cannot be loaded, as `Reader.load`.
    """
    check(study)
    examples = questions_of(study, questions)
    models = dry_models(study, load)
    found = []
    for name in study.readers:
        found += dry_costs(models, name, examples, lambda: cells_of(study), batch_size=study.batch_size)
    return found


def dry_models(study: Study, load: Callable[[str], DryReader] | None = None) -> DryModels:
    """Return a study's readers without their weights."""
    from fastreader.study.dry_reader import DryReader

    def dry(name: str) -> DryReader:
        config = model_of(study, name)
        if config.url is None:
            return DryReader.load(config.model, **load_options(study, name))
        return DryReader.of_engine(config.tokenizer or config.served or "", max_length=config.max_length)

    return DryModels(load or dry, max_batch_tokens=study.max_batch_tokens)


def dry_costs(
    models: DryModels, name: str, examples: list[Example], cells: Callable[[], list[Cell]], *, batch_size: int
) -> list[DryCost]:
    """Return what methods would cost with one reader, with the costs of a method's seeds added up.

    Args:
        models: the readers, with the longest replies.
        name: of the reader.
        examples: the questions.
        cells: makes the methods, each time new ones, since some keep what they have read.
        batch_size: number of questions that run together.
    """
    empty = models.with_empty_replies()
    groups = _groups(examples, batch_size)
    costs: dict[str, DryCost] = {}
    for longest, shortest in zip(cells(), cells(), strict=True):
        most, least = _Counts(), _Counts()
        _run(models, name, groups[:1], examples, longest, most)
        _run(empty, name, groups[:1], examples, shortest, least)
        same = most.read == least.read  # then no prompt holds a reply
        _run(models, name, groups[1:], examples, longest, most)
        if same:
            least = most
        else:
            _run(empty, name, groups[1:], examples, shortest, least)
        label = longest.config.label
        costs[label] = _added(costs.get(label, DryCost(label, name)), least, most)
    return list(costs.values())


def dry_call(reader: DryReader, call: Callable[[CachedReader], object]) -> DryCost:
    """Return what a function's calls of a reader would cost, tokens as they are shared within each call."""
    models = DryModels(lambda _: reader)
    found = []
    for each in (models.with_empty_replies(), models):
        opened = each.open(reader.name)
        with _unlogged():
            call(opened)
        spent = opened.take()
        read = (spent.total_tokens - spent.new_tokens, spent.computed_tokens - spent.new_tokens)
        found.append((each.requests, *read, spent.new_tokens))
    bounds = [tuple(sorted(ends)) for ends in zip(*found, strict=True)]
    return DryCost("", reader.name, 0, *bounds)  # type: ignore[arg-type]


def failing(
    models: DryModels, name: str, examples: list[Example], cells: Iterable[Cell], *, batch_size: int
) -> Iterator[DryCost]:
    """Yield the methods that answer none of the questions.

    A method that fails for the first questions is tried on the others too, and on no more once it answers one.
    """
    for cell in cells:
        counts = _Counts()
        for group in (examples[:_FIRST], *_groups(examples[_FIRST:], batch_size)):
            _run(models, name, [group], examples, cell, counts)
            if counts.answers:
                break
        else:
            yield _added(DryCost(cell.config.label, name), counts, counts)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Leave out warnings about documents that the reader did not write, as empty replies are."""
    logger = logging.getLogger("fastreader.eor.run")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _groups(examples: list[Example], size: int) -> list[list[Example]]:
    return [examples[i : i + size] for i in range(0, len(examples), size)]


def _run(
    models: DryModels, name: str, groups: Iterable[list[Example]], everything: list[Example], cell: Cell, sums: _Counts
) -> None:
    """Run a method on groups of questions with placeholders for replies, and add what it costs."""
    dry = replace(cell, method=_Dry(cell.method, models.longest))
    before = models.requests
    for group in groups:
        keys = {cell.key(example, name) for example in group}
        with _unlogged():
            run_group(models.open(name), name, group, [dry], everything, models.open, missing=keys, write=sums.add)
    sums.tokens["prompts"] += models.requests - before


def _added(cost: DryCost, least: _Counts, most: _Counts) -> DryCost:
    """Return a cost with the sums of one more seed."""
    bounds: dict[str, Any] = {}
    for name in ("prompts", "total", "computed", "new"):
        attribute = name if name == "prompts" else f"{name}_tokens"
        low, high = getattr(cost, attribute)
        ends = sorted((0 if name == "new" else least.tokens[name], most.tokens[name]))  # a random order may be shorter
        bounds[attribute] = (low + ends[0], high + ends[1])
    return replace(
        cost,
        answers=cost.answers + most.answers,
        left_out=cost.left_out + most.left_out,
        over_long=cost.over_long + most.over_long,
        failed=cost.failed + most.failed,
        problem=cost.problem or most.problem,
        **bounds,
    )
