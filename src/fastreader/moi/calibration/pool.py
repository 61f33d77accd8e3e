"""Pool: the scores of calls without a calibration, until they settle the reader's bias."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastreader.core.checked import checked_methods
from fastreader.core.checks import check_int, check_output, expect, located, rebuilding
from fastreader.core.forks import repair_in_children
from fastreader.data.files import read_object, write_json
from fastreader.moi.calibration.settling import LEAST, Look, is_look, look
from fastreader.moi.quantities.observations import Observations
from fastreader.moi.quantities.position_bias import PositionBias

MOST = 200  # questions of one reader, template and N that a pool keeps; more would settle nothing further

_ROUNDING = 1e-3  # nats
_Key = tuple[str, str, str, int]


@dataclass
class _Kept:
    observed: list[Observations] = field(default_factory=list)
    last: Look | None = None
    looked: int = 0  # questions of the last look


@checked_methods
class Pool:
    """Scores of questions, kept in memory until they settle the position bias of their reader.

    Give one to `moi.rerank` or `moi.answer` for a reader without a calibration: each call then scores N orderings of a
    Latin square, adds them, and uses the pool's bias from the call on at which it is settled. The pool looks at 20
    questions, and then whenever it has grown by a quarter. It is safe to share between threads.

    Args:
        most: questions kept for one reader, template and number of passages; further ones are not added.

    Raises:
        InputError: if `most` is below 20, the questions of the first look.
    """

    def __init__(self, most: int = MOST) -> None:
        check_int("most", most, LEAST)
        self._most = most
        self._kept: dict[_Key, _Kept] = {}
        self.after_fork()
        repair_in_children(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread that a forked child does not have may hold."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        with self._lock:
            parts = [f"{key[0]!r}, N = {key[3]}: {len(kept.observed)} questions" for key, kept in self._kept.items()]
        return f"Pool({'; '.join(parts) or 'empty'})"

    def add(self, observed: Observations) -> None:
        """Add a question's scores, unless the pool has the question or is full.

        Raises:
            InputError: if the scores are not of whole orderings of at least 3 passages with query likelihoods.
        """
        whole = observed.length == observed.passages >= 3 and observed.kind == "question" and observed.qg is not None
        expect(whole, "observed", "question scores of whole orderings of at least 3 passages, with qg", observed)
        with self._lock:
            kept = self._kept.setdefault(_key(observed.reader, observed.template, observed.passages), _Kept())
            settled = kept.last is not None and kept.last.settled
            if settled or len(kept.observed) >= self._most or any(_same(observed, other) for other in kept.observed):
                return
            kept.observed.append(observed)
            looked = list(kept.observed)
        if not is_look(len(looked)):
            return
        found = look(looked)  # takes seconds, for which nobody who asks for the state should wait
        with self._lock:
            if len(looked) > kept.looked:
                kept.last, kept.looked = found, len(looked)

    def bias(self, reader: Mapping[str, str], template: str, passages: int) -> PositionBias | None:
        """Return the settled bias of a reader (as `Reader.describe` returns it), template digest and N, or None."""
        with self._lock:
            kept = self._kept.get(_key(reader, template, passages))
            return kept.last.bias if kept is not None and kept.last is not None and kept.last.settled else None

    def states(self) -> list[dict[str, Any]]:
        """Return for each reader, template and N: reader, passages, number of questions, settled, and `state`."""
        with self._lock:
            keys = list(self._kept.items())
        return [
            {
                "reader": name,
                "template": template,
                "passages": passages,
                "questions": len(kept.observed),
                "settled": kept.last is not None and kept.last.settled,
                "state": self.state({"name": name, "revision": revision}, template, passages),
            }
            for (name, revision, template, passages), kept in keys
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the scores as a JSON file, atomically and without any text of a question."""
        check_output("path", path)
        with self._lock:
            rows = [
                {
                    "reader": {k: v for k, v in o.reader.items() if k in ("name", "revision")},
                    "template": o.template,
                    "question": o.values.tolist(),
                    "permutations": o.permutations.tolist(),
                    "alone": [] if o.qg is None else o.qg.tolist(),
                }
                for kept in self._kept.values()
                for o in kept.observed
            ]
        write_json(path, {"most": self._most, "questions": rows})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Pool:
        """Read a file written by `save`.

        Raises:
            InputError: if it is something else.
        """
        values = read_object(path)
        with located(os.fspath(path)), rebuilding("Pool.load", values):
            pool = cls(values["most"])
            for row in values["questions"]:
                alone = row["alone"]
                orders = np.array(row["permutations"])
                scores = np.array(row["question"])
                pool.add(
                    Observations(scores, orders, len(alone), qg=alone, reader=row["reader"], template=row["template"])
                )
        return pool

    def count(self, reader: Mapping[str, str], template: str, passages: int) -> int:
        """Return the number of questions kept for a reader, template digest and N."""
        with self._lock:
            kept = self._kept.get(_key(reader, template, passages))
            return 0 if kept is None else len(kept.observed)

    def state(self, reader: Mapping[str, str], template: str, passages: int) -> str:
        """Return one sentence: how many questions there are, and what is still open or settled."""
        with self._lock:
            kept = self._kept.get(_key(reader, template, passages)) or _Kept()
            count, last = len(kept.observed), kept.last
        if last is not None and last.settled:
            return f"{count} questions of this pool settle the bias"
        pooled = f"{count} question{'' if count == 1 else 's'} pooled"
        return f"{pooled}, not enough to settle a bias yet" + ("" if last is None else f" ({last.why})")


def _key(reader: Mapping[str, str], template: str, passages: int) -> _Key:
    return reader.get("name", ""), reader.get("revision", ""), template, passages


def _same(one: Observations, other: Observations) -> bool:
    """Return whether two scores are of one question: its passages, each alone, explain it equally well."""
    assert one.qg is not None and other.qg is not None
    return bool((np.abs(one.qg - other.qg) <= _ROUNDING).all())
