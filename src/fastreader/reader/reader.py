"""Reader: the language model that reads the passages."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fastreader.core.protocol import Generation, Loglikelihood, Results, TextOrTokens
from fastreader.core.tree import PrefixTree, Tokens
from fastreader.data.fingerprints import reader_name
from fastreader.models import load as loading
from fastreader.models import memory
from fastreader.models.adapter import TreeModel
from fastreader.models.precision import Arithmetic
from fastreader.models.probe import probe
from fastreader.models.revision import revision
from fastreader.reader import generate as generation
from fastreader.reader import loglikelihood as likelihood
from fastreader.reader import planning as packing
from fastreader.reader.loglikelihood import SequenceScores
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.prompts.writer import PromptWriter
from fastreader.reader.sampling import Sampling
from fastreader.reader.session import Session


class Reader(PromptWriter):
    """A causal language model that scores many texts in one packed pass.

    Make one with `Reader.load`. It is safe to share between threads: one pass runs at a time. Each call plans for
    the memory that is free when it begins, so several that write at once should be given `max_tokens`.

    Attributes:
        name: what it was loaded from.
        arithmetic: device, storage type and precision, and why.
        revision: tells weights and chat template from others of that name; empty for a packaged model, which has one.
        encoder: the tokenizer, by pieces.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, arithmetic: Arithmetic, revision: str = "") -> None:
        super().__init__(TextEncoder(tokenizer))
        self.name = name
        self.revision = revision
        self._model = TreeModel(model, name, arithmetic.precision)
        if self._model.why_own and self._model.precision != arithmetic.precision:
            arithmetic = replace(arithmetic, precision=self._model.precision, reason=self._model.why_own)
        self.arithmetic = arithmetic
        self._lock = threading.Lock()
        self.probe_difference = probe(self._model)

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] | tuple[Any, Any],
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        precision: str = "fast",
    ) -> Reader:
        """Load a reader.

        Args:
            model: a packaged name ("smollm2-135m"), a folder, a GGUF file, a hub id, or a (transformers
                model, tokenizer) pair, which is left as found. A model that is cached touches no network.
            device: "auto" takes CUDA where there is one; a pair stays on its own device.
            dtype: how weights are stored: "auto", "bfloat16", "float16", "float32" or "float64".
            precision: how they are multiplied. "fast": bfloat16 operands (float32 on a CPU without bfloat16
                instructions); "high": bfloat16 operands split in two, near float32; "exact": float32, or
                float64 where the weights are. All else runs in float32.

        Raises:
            ModelNotFoundError: no such model.
            ModelFileError: a file of it is damaged.
            UnsupportedModelError: its architecture cannot run on a packed tree, or a short probe text gets
                other log-likelihoods than from the model's own forward.
            InputError: an unknown device, dtype or precision.
        """
        if not isinstance(model, (str, os.PathLike)):
            own, tokenizer = loading.pair(model)
            given = getattr(own, "name_or_path", "")
            name, of = reader_name(given) if given else type(own).__name__, revision(own, tokenizer)
            own, arithmetic = loading.borrow(own, device, dtype, precision)
            return cls(own, tokenizer, name, arithmetic, of)
        loaded, tokenizer, arithmetic = loading.load(model, device, dtype, precision)
        of = "" if loading.is_packaged(model) else revision(loaded, tokenizer)
        reader = cls(loaded, tokenizer, reader_name(model), arithmetic, of)
        reader._model.forget_plain()  # nobody else has it, so that weights are not held twice
        return reader

    def __repr__(self) -> str:
        a = self.arithmetic
        stored = str(a.dtype).removeprefix("torch.")
        return f"Reader({self.name!r}, {a.device}, weights {stored}, precision={a.precision!r})"

    def describe(self) -> dict[str, str]:
        """Name, revision, device, dtype, precision and the forward's path, as results carry them."""
        a = self.arithmetic
        return {
            "name": self.name,
            **({"revision": self.revision} if self.revision else {}),
            "device": str(a.device),
            "dtype": str(a.dtype).removeprefix("torch."),
            "precision": a.precision,
            "forward": self._model.path,
        }

    @property
    def max_length(self) -> int | None:
        """Longest input the model takes, in tokens; None where its config sets no limit."""
        return self._model.max_length

    def budget(self) -> int:
        """Tokens one pass computes at most by default, from the memory free now."""
        model = self._model
        return memory.default_budget(model.bytes_per_token, model.device, model.beside_tokens)

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        *,
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_tokens: int | None = None,
    ) -> Results[Loglikelihood]:
        """Log-likelihood of each continuation after its context; shared prefixes are computed once.

        Args:
            requests: (context, continuation) pairs, as text (split into tokens by the evaluation harness's
                rule, see `TextEncoder.pair`) or as token ids.
            token_logprobs: also give each token's value.
            on_overflow: "error", or "truncate" to drop tokens from the left of a context that is too long.
            max_tokens: tokens computed in one pass at most; from free memory by default. It changes results
                by no more than rounding.

        Returns:
            One result for each request, in order; with `.stats`, `.passes` and `.seconds`.

        Raises:
            InputError: a continuation that is empty or vanishes in tokenisation, or token ids out of range.
            ContextOverflowError: a request is longer than the model's context.
            OutOfBudgetError: one sequence alone does not fit in memory.
            NumericsError: a log-likelihood is not finite.
        """
        return likelihood.loglikelihood(
            self, requests, token_logprobs=token_logprobs, on_overflow=on_overflow, max_tokens=max_tokens
        )

    def generate(
        self,
        prompts: Iterable[TextOrTokens],
        *,
        max_new_tokens: int = 128,
        n: int = 1,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Results[list[Generation]]:
        """Write `n` texts after each prompt; shared prefixes are read once, and all texts are written together.

        A text does not depend on the other prompts, on their order or on how they were split, beyond rounding:
        what a sample draws follows from the seed, its prompt and how many samples of an equal prompt came before
        it, so that n copies of a prompt are n samples of it.

        Args:
            prompts: texts (read with their special tokens, as `TextEncoder.start` trusts them), or token ids as
                `prompt` gives them; an empty one is a beginning of text.
            max_new_tokens: tokens written at most.
            n: texts a prompt.
            temperature: divides the logits; 0 for greedy decoding.
            top_k: draw among this many most likely tokens.
            top_p: draw among the fewest most likely tokens whose probabilities sum to this.
            seed: of the draws.
            stop: texts that end a text; they are cut off, with what follows them.
            stop_tokens: token ids that end a text, besides the model's own end of turn or text.
            token_logprobs: also give each token's log-probability.
            on_overflow: "error" refuses a prompt longer than the context; "truncate" drops tokens from the left of
                a prompt so that `max_new_tokens` fit. A text that reaches the end of the context stops there.
            max_tokens: prompt tokens read in one pass at most, those of new tokens' keys counted; by default from
                free memory.
            progress: show a progress bar; None: where standard error is a terminal.

        Returns:
            For each prompt its `n` `Generation`s, in order; with `.stats`, `.passes` and `.seconds`.

        Raises:
            InputError: an argument out of range, or token ids out of range.
            ContextOverflowError: a prompt leaves no room to write.
            OutOfBudgetError: one prompt and its text alone do not fit in memory.
            NumericsError: logits are not finite.
        """
        return generation.generate(
            self,
            prompts,
            max_new_tokens=max_new_tokens,
            n=n,
            sampling=Sampling(temperature, top_k, top_p),
            seed=seed,
            stop=stop,
            stop_tokens=stop_tokens,
            token_logprobs=token_logprobs,
            on_overflow=on_overflow,
            max_tokens=max_tokens,
            progress=progress,
        )

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens by which the model ends a turn or a text: its generation config's and its tokenizer's."""
        own = self.encoder.tokenizer.eos_token_id
        return self._model.end_tokens() | (frozenset() if own is None else {int(own)})

    def score(self, sequences: Sequence[tuple[Tokens, Tokens]], *, max_tokens: int | None = None) -> SequenceScores:
        """Score (context, continuation) pairs of token ids; the layer under `loglikelihood`.

        Args:
            sequences: contexts hold at least one token; a continuation may be empty and then scores 0.
            max_tokens: as for `loglikelihood`.

        Raises:
            InputError: token ids out of range.
            ContextOverflowError, OutOfBudgetError, NumericsError: as `loglikelihood`.
        """
        return likelihood.score(self, sequences, max_tokens=max_tokens)

    def session(
        self,
        *prefixes: TextOrTokens | Sequence[str],
        max_bytes: int | None = None,
        keep_scored: bool = False,
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Session:
        """Read prefixes once and keep their keys and values, so that later calls compute only what follows them.

        The session is a `ReaderProtocol` itself, with the same numbers up to rounding; `score_permutations` and
        `moi.rerank` take one too, and `Session.extend` reads more prefixes::

            with reader.session([instruction, passages]) as kept:
                answers = kept.generate([kept.prompt([instruction, passages, q]) for q in questions])

        Args:
            prefixes: each a list of pieces as `prompt` takes them (what all prompts that start with these
                pieces share), token ids, or a text. With `keep_scored` there may be none.
            max_bytes: memory the kept keys and values may take; by default half of what is free now.
            keep_scored: also keep the keys and values of whatever the session scores, for the calls after it: to
                write after prompts whose passages were just scored, say. A call that would pass `max_bytes` is
                refused before it runs.
            system, chat, chat_options: as for `prompt`; for prefixes given in pieces.
            max_tokens: of the prefixes, computed in one pass at most; as for `loglikelihood`.

        Raises:
            InputError, ContextOverflowError: as `prompt` and `generate`.
            OutOfBudgetError: the prefixes take more than `max_bytes`.
        """
        kept = Session(self, max_bytes, keep_scored=keep_scored)
        if prefixes or not keep_scored:
            kept.extend(*prefixes, system=system, chat=chat, chat_options=chat_options, max_tokens=max_tokens)
        return kept

    def plan(
        self, sequences: Sequence[tuple[Tokens, Tokens]], max_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """The trees a call of `score` would run, without running them; `sequence_ids` refer to `sequences`.

        Args:
            sequences: as for `score`.
            max_tokens: as for `loglikelihood`.
            new_tokens: how many are written after each sequence; memory is then set aside for their keys and
                values, and for those of the tree.

        Raises:
            ContextOverflowError, InputError, OutOfBudgetError: as `loglikelihood`.
        """
        return packing.plan(self._model, sequences, max_tokens, new_tokens)
