"""Decode texts on a GPU, which chooses the tokens, while the host reads the tokens of the step before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.options import StepOptions
from fastreader.core.tree import IntArray, PrefixTree
from fastreader.errors import NumericsError
from fastreader.models.passes.cuda_graphs import Record, Recorded, graphs_wanted, recorder
from fastreader.models.passes.key_values import KeyValues
from fastreader.models.passes.row_keys import RowKeys
from fastreader.models.tree_model import TreeModel
from fastreader.ops.upload import Upload
from fastreader.reader.generation.sampling import pick, top_rows
from fastreader.reader.generation.text_so_far import DecodedText, unfinished
from fastreader.reader.local_model import LocalModel

_DRAWS = 256  # random numbers of a text that go to the device at once
_FEWEST_REPLAYS = 16  # steps that recording must save
_TOKEN, _HIGHEST, _LOGPROB, _TOP = range(4)  # rows of a report; from the last on, ids and values of the most likely


@dataclass(frozen=True)
class Decoding:
    """One call of `generate`.

    Attributes:
        local_model: the model, locked during a pass and the choice of its tokens.
        options: how tokens are drawn and where texts end.
        advance: called with the number of texts finished.
    """

    local_model: LocalModel
    options: StepOptions
    advance: Callable[[int], None]


def decode_on_device(
    decoding: Decoding, tree: PrefixTree, prompt: KeyValues, leaves: IntArray, texts: list[DecodedText]
) -> Iterator[None]:
    """Decode texts until all are finished, after the first token of each, and yield each step.

    A text that ends by a stop string is known one step late; tokens that the device chose after it are dropped.

    Args:
        decoding: the call.
        tree: the prompts.
        prompt: their keys and values.
        leaves: for each text its prompt's last token in the tree.
        texts: the texts; extended in place.
    """
    local_model, options, eos = decoding.local_model, decoding.options, decoding.local_model.end_tokens
    live = unfinished(texts)
    texts, leaves = [texts[i] for i in live], leaves[live]
    if not texts:
        return
    steps = max(text.room - len(text.tokens) for text in texts)
    with local_model.lock:
        device_texts = DeviceTexts(local_model.model, RowKeys(tree, prompt, leaves, steps), texts, options, eos)
    waiting: tuple[list[DecodedText], Readback] | None = None
    while True:
        launched = None
        if any(not text.finish_reason and text.room - len(text.tokens) > (waiting is not None) for text in texts):
            with local_model.lock:
                launched = texts, device_texts.step()
        if waiting is not None:
            finished = _add(decoding, *waiting)
            if finished:
                decoding.advance(finished)
            yield
        if launched is None:
            return
        waiting = launched
        live = unfinished(texts)
        if not live:
            return
        if 2 * len(live) <= len(texts):  # before, finished texts cost less than laying out the others again
            texts = [texts[i] for i in live]
            with local_model.lock:
                device_texts.select(np.asarray(live, dtype=np.int64), texts)


def _add(decoding: Decoding, texts: list[DecodedText], report: Readback) -> int:
    """Add a step's tokens to the texts that were not finished, and return the number of texts that this finishes."""
    model, options, eos = decoding.local_model.model, decoding.options, decoding.local_model.end_tokens
    values, finished = report.get(), 0
    live = unfinished(texts)
    check_finite(model, values[_HIGHEST, live].tolist())
    for i in live:
        logprob = float(values[_LOGPROB, i]) if options.token_logprobs else None
        top = None
        if options.top_logprobs:
            ids, logprobs = np.split(values[_TOP:, i], 2)
            (top,) = top_rows(torch.from_numpy(ids)[None].long(), torch.from_numpy(logprobs)[None])
        texts[i].add(int(values[_TOKEN, i]), logprob, eos, options.stop_token_ids, top)
        finished += bool(texts[i].finish_reason)
    return finished


def check_finite(model: TreeModel, highest: Iterable[float]) -> None:
    """Raise NumericsError if a text's largest logit is not finite."""
    if not all(map(math.isfinite, highest)):
        raise NumericsError(
            f"{model.name}: the logits of a next token are not finite; the weights are damaged, or their products "
            f"too large for precision {model.precision!r}"
        )


class DeviceTexts:
    """Texts that gain a token a step: their tokens, and whether they are finished, are on the device.

    A step launches the same kernels on the same memory each time, copies nothing from the host and waits for nothing.

    Args:
        model: the model.
        cache: keys and values of the texts.
        texts: with their tokens so far; none is finished.
        options: how tokens are drawn and where texts end.
        eos: tokens by which the model ends its text.
        record: records steps, to replay them; None does so with CUDA graphs if they are wanted.
    """

    def __init__(
        self,
        model: TreeModel,
        cache: RowKeys,
        texts: list[DecodedText],
        options: StepOptions,
        eos: frozenset[int],
        *,
        record: Record | None = None,
    ) -> None:
        self._model, self._cache, self._options = model, cache, options
        self._most = min(options.top_logprobs, model.head.weight.shape[0])
        if record is None and graphs_wanted() and model.why_not_graphs is None:
            record = recorder(model.device)
        self._record = record
        upload = Upload(model.device)
        last, left = (np.array(of) for of in ([r.tokens[-1] for r in texts], [r.room - len(r.tokens) for r in texts]))
        arrays = [last, left, np.array(sorted({*eos, *options.stop_token_ids}), dtype=np.int64)]
        sent = [upload.add(array) for array in arrays]
        self._tokens, self._left, self._ends = (each.get().clone() for each in sent)
        self._finished = torch.zeros_like(self._left, dtype=torch.bool)
        self._uniforms = torch.zeros((_DRAWS, len(texts)), dtype=torch.float64, device=model.device)
        self._draw = torch.zeros(1, dtype=torch.int64, device=model.device)
        self._draws_left = 0
        self._begin(texts)

    def _begin(self, texts: list[DecodedText]) -> None:
        """Start with these texts, whose tokens are in place."""
        self._texts = texts
        self._recorded: Recorded[Any] | None = None
        self._steps = 0  # since then
        self._report = torch.zeros((_TOP + 2 * self._most, len(texts)), dtype=torch.float64, device=self._model.device)

    @torch.inference_mode()
    def step(self) -> Readback:
        """Decode the next token of every text, and return the report of it."""
        if self._options.temperature and not self._draws_left:
            drawn = [text.draw.random(_DRAWS) for text in self._texts if text.draw is not None]
            self._uniforms.copy_(Upload(self._model.device).add(np.stack(drawn, axis=1)).get())
            self._draw.zero_()
            self._draws_left = _DRAWS
        self._steps += 1
        self._draws_left -= 1
        if self._recorded is not None:
            self._recorded.replay()
        else:
            self._launch()
            remaining = max(text.room - len(text.tokens) for text in self._texts)
            if self._record is not None and self._steps == 2 and remaining > _FEWEST_REPLAYS:
                self._recorded = self._record(self._launch)
        return Readback(self._report)

    def _launch(self) -> None:
        states = self._model.states(self._tokens, self._cache.positions.clamp(min=0).long(), self._cache)
        uniforms = self._uniforms[0]  # unused by greedy choice
        if self._options.temperature:
            uniforms = self._uniforms[self._draw][0]
            self._draw += 1
        for part, logits in self._model.logits.parts(states):
            picked = pick(logits, self._options, uniforms[part])
            self._report[_TOKEN, part], self._report[_HIGHEST, part] = picked.tokens, picked.highest
            self._tokens[part] = picked.tokens
            if picked.logprobs is not None:
                self._report[_LOGPROB, part] = picked.logprobs
            if picked.top is not None:
                self._report[_TOP:, part] = torch.cat([side.T.double() for side in picked.top])
        self._left -= 1
        self._finished |= (self._tokens[:, None] == self._ends).any(dim=1) | (self._left <= 0)
        self._cache.advance(self._finished)

    @torch.inference_mode()
    def select(self, live: IntArray, texts: list[DecodedText]) -> None:
        """Continue with these texts only, given by their places among the present ones."""
        places = Upload(self._model.device).add(live).get()
        self._cache.select(live, places)
        kept = (each[..., places] for each in (self._tokens, self._left, self._finished, self._uniforms))
        self._tokens, self._left, self._finished, self._uniforms = kept
        self._begin(texts)


class Readback:
    """Values on their way to the host, for which nobody waits before they are needed.

    Args:
        values: on the device; what is launched afterwards may overwrite them.
    """

    def __init__(self, values: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(values.device))
        else:
            self._values = values.clone()

    def get(self) -> npt.NDArray[np.float64]:
        """Return the values, as soon as they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: npt.NDArray[np.float64] = self._values.numpy()
        return values
