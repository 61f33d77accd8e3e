"""moi and order: one reading in MoI's order, or in one of the orders that it has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fastreader.core.checks import check_choice, check_keys, expect, given, located
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.eor.similarity.loading import require_model_name
from fastreader.moi.baselines import METHODS, Method
from fastreader.moi.baselines.paper import SIGNS
from fastreader.moi.calibration.store import find
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.moi.quantities.utilities import ORDERS
from fastreader.moi.reorder.answer import MoiAnswer, placed_for
from fastreader.moi.reorder.planning import KINDS, Stopping
from fastreader.moi.reorder.rerank import rerank
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program, score, write_one
from fastreader.scoring.reading import POLICIES, Reading, fit_reading, reading_pieces, truncation_note
from fastreader.study.cached_reader import scoring
from fastreader.study.method import Answered, Batch, Family, NotApplicable, StudyMethod, check_options, summary_of
from fastreader.study.methods.reading import STOP, TemplateMethod, ranker_of

_MOI = (
    "bias",
    "order",
    "prune",
    "prune_mass",
    "stopping",
    "permutations",
    "max_new_tokens",
    "max_passages",
    "on_overflow",
    "model",
    "kind",
)
_ORDER = ("bias", "model", "max_new_tokens")
_PAPER = ("sign", "permutations", "prune", "prune_mass", "order", "bias", "model", "max_new_tokens")
_TRACED = {
    "bias": ("bias", "intervals", "num_questions", "sign"),
    "utilities": ("utility", "intervals", "p_best", "bias", "method", "identified"),
}  # attributes of a ranking that its row keeps
HALF = "half of the passages"
PAPER: dict[str, dict[str, Any]] = {
    "paper": {},
    "paper-cyclic": {"permutations": "cyclic"},
    "paper-pruned": {"permutations": "cyclic", "prune": HALF},
    "paper-variable": {"permutations": "cyclic", "prune_mass": 0.9},
}
"""The variants of `moi` that are the paper's own, `moi.baselines.moi_paper`, with the options of its Table 6."""


@dataclass(frozen=True)
class MoiMethod(TemplateMethod):
    """Passages re-ranked by MoI, then read once, with the options of `moi.rerank`.

    Attributes:
        order, bias, options: see `moi.rerank`.
        model: name of the reader that scores the orderings (model substitution); None for the study's.
    """

    reads = "moi"
    order: str
    bias: PositionBias | None
    options: dict[str, Any]
    model: str | None = None

    @property
    def ranker(self) -> str | None:
        """`model`."""
        return self.model

    def readers(self, batch: Batch) -> Readers:
        """Return the study's reader, and the one that scores."""
        return Readers(batch.reader, {} if self.model is None else {"moi": batch.models(self.model)})

    @property
    def draws(self) -> bool:
        """Whether the seed matters: orderings are drawn, unless `permutations` is a design without a draw."""
        design = self.options.get("permutations", "random")
        named = design.strip().replace("-", "_") if isinstance(design, str) else "explicit"
        return "stopping" in self.options or named not in ("explicit", "identity", "cyclic", "cyclic_reversed")

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        settings = {"bias": self.bias, "order": self.order, "template": self.template, **self.options}
        scorer = ranker_of(batch, self.model)
        ranked = yield from scoring("moi", scorer, lambda reader: rerank(reader, example, seed=batch.seed, **settings))
        if self.model is not None and self.order == "matched":
            own = find(batch.reader.describe(), self.template.digest(), len(ranked) - ranked.tail)
            ranked = placed_for(batch.reader.tree_reader(), ranked, scorer.tree_reader(), own)
        order = ranked.indices[: len(ranked) - ranked.tail]
        reader = batch.reader.tree_reader()
        chosen = self.choices(example)
        reads = replace(example, passages=example.passages[: len(order)])
        pieces = reading_pieces(reader, reads, chosen, self.template)
        policy = self.options.get("on_overflow", "error")
        pieces, truncated = fit_reading(pieces, order, reader.max_length, self.max_new_tokens, policy)
        prompt = pieces.head + pieces.body(order) + pieces.tail()
        if chosen:
            scored = yield from score("answer", [(prompt, tokens) for tokens in pieces.candidates])
            nats = {text: each.logprob for text, each in zip(chosen, scored, strict=True)}
            text, ended = max(nats, key=lambda candidate: nats[candidate]), "candidate"
            tokens = len(prompt) + sum(map(len, pieces.candidates))
        else:
            reply = yield from write_one("answer", prompt, max_new_tokens=self.max_new_tokens, stop=STOP)
            nats, text, ended = None, reply.text.strip(), reply.finish_reason
            tokens = len(prompt) + len(reply.token_ids)
        reading = Reading(text, nats, ended, TreeStats(1, tokens, tokens, 0), truncated=truncated)
        note = "; ".join(filter(None, [ranked.note, truncation_note("answering", truncated)]))
        result = MoiAnswer(reading.text, ranked, reading, replace(ranked.cost, answer=tokens), note)
        return Answered(reading.text, {"order": order, **_trace(result)}, result=result)


def _trace(answer: MoiAnswer) -> dict[str, Any]:
    ranked = answer.ranked
    trace: dict[str, Any] = {"design": ranked.order, "bias_source": ranked.bias_source}
    for name, kept in _TRACED.items():
        if (found := getattr(ranked, name)) is not None:
            values = found.to_dict()
            trace[name] = {key: values[key] for key in kept}
    if (o := ranked.observations) is not None:
        trace["observations"] = {
            "permutations": o.permutations.tolist(),
            "values": np.asarray(o.values, dtype=np.float64).tolist(),
        }
    if answer.note:
        trace["notes"] = [answer.note]
    return trace


@dataclass(frozen=True)
class OrderMethod(TemplateMethod):
    """An order of `moi.baselines.METHODS`, then one reading.

    Attributes:
        method: of `METHODS`.
        bias: a calibration of the reader that answers.
        model: a cross-encoder, or the reader that finds the order; None for the study's.
        options: further settings of the method.
    """

    method: Method
    bias: PositionBias | None
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranker(self) -> str | None:
        """`model`, unless it is a cross-encoder."""
        return self.model if "reader" in self.method.needs else None

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        return "seed" in self.method.settings

    def programs(self, batch: Batch) -> list[Program[Answered]]:
        """Return a program for each question, after the reader that finds the order is loaded."""
        if batch.examples:
            ranker_of(batch, self.ranker)
        return super().programs(batch)

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        name, needs = f"order:{self.method.name}", self.method.needs
        if not example.passages:
            raise NotApplicable(f"{name}: the question has no passages")
        if "gold" in needs and not any(p.is_gold or p.has_answer for p in example.passages):
            raise NotApplicable(f"{name}: no passage of the question is marked as gold")
        if "scores" in needs and any(p.score is None for p in example.passages):
            raise NotApplicable(f"{name}: the passages have no retriever's scores")
        reader = batch.reader.tree_reader()
        bias = self.bias
        if bias is None and ("bias" in needs or self.options.get("sign") == "pooled"):
            found = find(reader.describe(), self.template.digest(), len(example.passages))
            wanted = f"{name}: needs a calibration of {reader.describe()['name']} for {len(example.passages)} passages"
            # InputError, not NotApplicable: with a calibration, a resumed run can answer the question.
            bias = given(found, f"{wanted}; run fastreader calibrate, or give bias")[0]
        settings = {"bias": bias, "seed": batch.seed, "template": self.template, "model": self.model, **self.options}
        if settings.get("prune") == HALF:
            settings["prune"] = max(1, len(example.passages) // 2)
        ranker = ranker_of(batch, self.ranker).tree_reader()
        ordering = self.method(ranker, example.question, example.passages, **settings)
        scores = {} if ordering.scores is None else {"order_scores": ordering.scores.tolist()}
        details = dict(ordering.details)
        answered = yield from self._read(batch, example, ordering.order, ordering.stats, details=details, **scores)
        return answered


def _make_moi(variant: str, options: dict[str, Any], study: Any) -> StudyMethod:
    if variant in PAPER:
        check_options(f"moi:{variant}", options, _PAPER)
        for name, known in (("sign", SIGNS), ("order", ORDERS)):
            check_choice(f"method 'moi:{variant}': {name}", options.get(name, known[0]), known)
        names = ("sign", "permutations", "prune", "prune_mass", "order")
        own: dict[str, Any] = {**PAPER[variant], **{name: options[name] for name in names if name in options}}
        return _make_order("moi-paper", {k: v for k, v in options.items() if k not in own}, study, own)
    given = {**study.moi, **options}
    check_options("moi", given, _MOI)
    order = given.pop("order", "matched")
    check_choice("method 'moi': order", variant or order, ORDERS)
    check_choice("method 'moi': kind", given.get("kind", KINDS[0]), KINDS)
    check_choice("method 'moi': on_overflow", given.get("on_overflow", "error"), POLICIES)
    if isinstance(given.get("stopping"), dict):
        given["stopping"] = _stopping(given["stopping"])
    given.setdefault("max_passages", study.passages)
    tokens = {"max_new_tokens": given.pop("max_new_tokens")} if "max_new_tokens" in given else {}
    bias = _bias(given.pop("bias", None))
    model = given.pop("model", None)
    return MoiMethod.of(study, {**tokens, "order": variant or order, "bias": bias, "options": given, "model": model})


def _make_order(
    variant: str, options: dict[str, Any], study: Any, own: Mapping[str, Any] = MappingProxyType({})
) -> OrderMethod:
    check_options(f"order:{variant}", options, _ORDER)
    method, model, name = METHODS[variant], options.get("model"), f"method 'order:{variant}': model"
    expect("model" not in method.needs or bool(model), name, "a cross-encoder", model)
    read = bool(method.needs & {"model", "reader"})
    expect(model is None or read, name, "none, since no model finds the order", model)
    if model is not None and "model" in method.needs:
        require_model_name(name, model, "a folder or a hub id of a cross-encoder")
    bias = _bias(options.get("bias", study.moi.get("bias")))
    return OrderMethod.of(study, {**options, "method": method, "bias": bias, "options": own})


def _stopping(values: dict[str, Any]) -> Stopping:
    check_keys("method 'moi': stopping", values, [each.name for each in fields(Stopping)])
    with located("method 'moi': stopping"):
        return Stopping(**values)


def _bias(path: Any) -> PositionBias | None:
    expect(path is None or isinstance(path, str), "bias", "a file of a calibration", path)
    return None if path is None else PositionBias.load(path)


def _moi_options(variant: str) -> tuple[str, ...]:
    return _PAPER if variant in PAPER else _MOI


_ABOUT = {
    "": "Read the passages once, ordered by MoI's utilities and the reader's calibrated bias.",
    "matched": "MoI: put the largest utility at the place of the largest bias.",
    "descending": "MoI: read the largest utility first.",
    "paper": "MoI as in the paper: utilities and bias estimated for each question alone.",
    "paper-cyclic": "MoI as in the paper, from the cyclic orderings of the retriever's order.",
    "paper-pruned": "MoI as in the paper, from the first half of each cyclic ordering, or `prune` places.",
    "paper-variable": "MoI as in the paper, from as much of each cyclic ordering as the retriever's scores ask for.",
}
MOI = Family("moi", _make_moi, _moi_options, _ABOUT)
ORDER = Family("order", _make_order, lambda _: _ORDER, {m.name: summary_of(m.function) for m in METHODS.values()})
