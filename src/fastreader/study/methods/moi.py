"""moi: MoI's order; order: one of the orders it has to beat. Both end with one reading in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.data import Example
from fastreader.errors import InputError
from fastreader.moi.baselines import METHODS, Method
from fastreader.moi.planning import Stopping
from fastreader.moi.position_bias import PositionBias
from fastreader.moi.ranked import Ranked
from fastreader.moi.rerank import rerank
from fastreader.moi.shipped import find
from fastreader.moi.utilities import ORDERS
from fastreader.reader.programs.requests import Program
from fastreader.reader.prompts.template import Template
from fastreader.study.method import Answered, Asked, Family, NotApplicable, no_options
from fastreader.study.methods.reading import read, template_of

if TYPE_CHECKING:
    from fastreader.reader.reader import Reader

_MOI_OPTIONS = ("bias", "order", "prune", "prune_mass", "stopping", "permutations", "max_new_tokens", "max_passages")
_ORDER_OPTIONS = ("bias", "model", "max_new_tokens")


@dataclass(frozen=True)
class Moi:
    """Passages re-ranked by MoI, then read once; options as of `moi.rerank`."""

    template: Template
    max_new_tokens: int
    order: str
    bias: PositionBias | None
    options: dict[str, Any]

    @property
    def draws(self) -> bool:
        """The orderings that are scored are drawn, unless a design is given that is not."""
        design = self.options.get("permutations", "random")
        named = design.strip().replace("-", "_") if isinstance(design, str) else "explicit"
        return "stopping" in self.options or named not in ("explicit", "identity", "cyclic", "cyclic_reversed")

    def programs(self, asked: Asked) -> list[Program[Answered]]:
        """As `StudyMethod.programs`."""
        return [self._program(asked, example) for example in asked.examples]

    def _program(self, asked: Asked, example: Example) -> Program[Answered]:
        if not example.passages:
            raise NotApplicable("moi: the question has no passages")
        from fastreader.study.asking import scoring

        ranked = yield from scoring("moi", asked.reader, lambda reader: self._rank(reader, example, asked.seed))
        order = ranked.indices[: len(ranked) - ranked.tail]
        reply = yield from read(asked, example, order, self.template, self.max_new_tokens)
        return Answered(reply, {"order": order, **_trace(ranked)})

    def _rank(self, reader: Reader, example: Example, seed: int) -> Ranked:
        return rerank(
            reader, example, bias=self.bias, order=self.order, template=self.template, seed=seed, **self.options
        )


def _trace(ranked: Ranked) -> dict[str, Any]:
    trace: dict[str, Any] = {"design": ranked.order, "bias_source": ranked.bias_source}
    if ranked.bias is not None:
        trace["bias"] = {
            "bias": ranked.bias.bias.tolist(),
            "intervals": ranked.bias.intervals.tolist(),
            "num_questions": ranked.bias.num_questions,
            "sign": ranked.bias.sign,
        }
    if (u := ranked.utilities) is not None:
        trace["utilities"] = {
            "utility": u.utility.tolist(),
            "intervals": None if u.intervals is None else u.intervals.tolist(),
            "p_best": None if u.p_best is None else u.p_best.tolist(),
            "bias": u.bias.tolist(),
            "method": u.method,
            "identified": u.identified,
        }
    if (o := ranked.observations) is not None:
        trace["observations"] = {
            "permutations": o.permutations.tolist(),
            "values": np.asarray(o.values, dtype=np.float64).tolist(),
        }
    if ranked.note:
        trace["notes"] = [ranked.note]
    return trace


@dataclass(frozen=True)
class Order:
    """An order of `moi.baselines.METHODS`, then one reading."""

    method: Method
    template: Template
    max_new_tokens: int
    bias: PositionBias | None
    model: str | None

    @property
    def draws(self) -> bool:
        """Whether it takes a seed."""
        return "seed" in self.method.settings

    def programs(self, asked: Asked) -> list[Program[Answered]]:
        """As `StudyMethod.programs`."""
        return [self._program(asked, example) for example in asked.examples]

    def _program(self, asked: Asked, example: Example) -> Program[Answered]:
        if not example.passages:
            raise NotApplicable(f"order:{self.method.name}: the question has no passages")
        if "gold" in self.method.needs and not any(p.is_gold or p.has_answer for p in example.passages):
            raise NotApplicable(f"order:{self.method.name}: no passage of the question is marked as gold")
        if "scores" in self.method.needs and any(p.score is None for p in example.passages):
            raise NotApplicable(f"order:{self.method.name}: the passages have no retriever's scores")
        reader = asked.reader.tree_reader()
        bias = self.bias
        if bias is None and "bias" in self.method.needs:
            found = find(reader.describe(), self.template.digest(), len(example.passages))
            if found is None:
                raise InputError(  # which a calibration mends, so that the run can go on with it
                    f"order:{self.method.name}: needs a calibration of {reader.describe()['name']} for "
                    f"{len(example.passages)} passages; run fastreader calibrate, or give bias"
                )
            bias = found[0]
        settings = {"bias": bias, "seed": asked.seed, "template": self.template, "model": self.model}
        ordering = self.method(reader, example.question, example.passages, **settings)
        reply = yield from read(asked, example, ordering.order, self.template, self.max_new_tokens)
        trace: dict[str, Any] = {"order": ordering.order, "details": dict(ordering.details)}
        if ordering.scores is not None:
            trace["order_scores"] = ordering.scores.tolist()
        return Answered(reply, trace, ordering.stats)


def _make_moi(variant: str, options: dict[str, Any], study: Any) -> Moi:
    given = {**study.moi, **options}
    no_options("moi", given, _MOI_OPTIONS)
    if variant and variant not in ORDERS:
        raise InputError(f"method 'moi:{variant}': expected one of {', '.join(f'moi:{o}' for o in ORDERS)}")
    order = variant or given.pop("order", "matched")
    if order not in ORDERS:
        raise InputError(f"method 'moi': order: expected one of {', '.join(ORDERS)}, got {order!r}")
    given.pop("order", None)
    if isinstance(given.get("stopping"), dict):
        given["stopping"] = _stopping(given["stopping"])
    given.setdefault("max_passages", study.passages)
    tokens = given.pop("max_new_tokens", study.max_new_tokens)
    return Moi(template_of(study), tokens, order, _bias(given.pop("bias", None)), given)


def _make_order(variant: str, options: dict[str, Any], study: Any) -> Order:
    no_options(f"order:{variant}", options, _ORDER_OPTIONS)
    if variant not in METHODS:
        raise InputError(f"method 'order:{variant}': expected one of {', '.join(f'order:{n}' for n in METHODS)}")
    method = METHODS[variant]
    if "model" in method.needs and not options.get("model"):
        raise InputError(f"method 'order:{variant}': needs the option model, the cross-encoder's name")
    bias = _bias(options.get("bias", study.moi.get("bias")))
    tokens = options.get("max_new_tokens", study.max_new_tokens)
    return Order(method, template_of(study), tokens, bias, options.get("model"))


def _stopping(values: dict[str, Any]) -> Stopping:
    names = [field.name for field in fields(Stopping)]
    if unknown := sorted(set(values) - set(names)):
        raise InputError(f"method 'moi': stopping: unknown key {unknown[0]!r}; it takes {', '.join(names)}")
    try:
        return Stopping(**values)
    except TypeError as error:
        raise InputError(f"method 'moi': stopping: expected numbers, got {values} ({error})") from error


def _bias(path: Any) -> PositionBias | None:
    if path is not None and not isinstance(path, str):
        raise InputError(f"bias: expected a file of a calibration, got {path!r}")
    return None if path is None else PositionBias.load(path)


def _moi_variants() -> Sequence[str]:
    return ["", *ORDERS]


def _order_variants() -> Sequence[str]:
    return list(METHODS)


MOI = Family("moi", "MoI's order, then one reading", _moi_variants, _make_moi)
ORDER = Family("order", "an order that MoI has to beat, then one reading", _order_variants, _make_order)
