"""ReaderBase: the calls that a reader and a session share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from fastreader.core.checked import accept, kind_of
from fastreader.core.checks import check_int, expect
from fastreader.core.options import StepOptions
from fastreader.core.protocol import Generation, Loglikelihood, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, TokenPairs
from fastreader.models.passes.prefix_cache import KeptKeys
from fastreader.models.tree_model import TreeModel
from fastreader.reader.generation.generate import Steps, generate
from fastreader.reader.local_model import LocalModel
from fastreader.reader.loglikelihood import score, score_requests
from fastreader.reader.prompts.writer import PromptWriter
from fastreader.reader.relevance import RelevanceCalls, RelevanceWriter

_TREES, _BOOL_OR_NONE, _OPTIONS = kind_of(Sequence[PrefixTree]), kind_of(bool | None), kind_of(StepOptions)


class ReaderBase(PromptWriter, RelevanceCalls):
    """Share the calls of `Reader` and `Session`.

    Attributes:
        local_model: the model, its tokenizer and its lock.
        name: what the model was loaded from.
        max_length: longest input the model takes, in tokens; None if its config sets no limit.
        end_tokens: tokens by which the model ends a turn or a text: its generation config's and its tokenizer's.
        relevance_writer: writes the prompts of a relevance model; None for other models.
    """

    def __init__(self, local_model: LocalModel) -> None:
        super().__init__(local_model.encoder)
        self.local_model = local_model
        self.name = local_model.name
        self.max_length = local_model.max_length
        self.end_tokens = local_model.end_tokens
        head = local_model.relevance
        self.relevance_writer = None if head is None else RelevanceWriter(local_model.encoder, head.scheme)

    @contextmanager
    def locked_model(self) -> Iterator[TreeModel]:
        """Yield the model that runs packed trees, while no other thread runs a pass.

        Raises:
            FastreaderError: if the reader was closed.
        """
        with self.local_model.lock:
            yield self.local_model.model

    @contextmanager
    def _cache(self) -> Iterator[KeptKeys | None]:
        """Yield the keys and values that calls start from."""
        yield None

    def describe(self) -> dict[str, str]:
        """Return name, revision, device, dtype, precision, how it reads and writes, and the check that ran at load."""
        local_model = self.local_model
        why = local_model.model.why_not_graphs if local_model.model.device.type == "cuda" else None
        no_graphs = f"; no CUDA graphs: {why}" if why else ""
        return {
            "name": local_model.name,
            **({"revision": local_model.revision} if local_model.revision else {}),
            "device": local_model.arithmetic.where,
            "dtype": local_model.arithmetic.stored,
            "precision": local_model.arithmetic.precision,
            "products": local_model.arithmetic.products,
            "forward": f"{local_model.model.forward_path}; writes {local_model.model.writing_path}{no_graphs}",
            "check": local_model.check,
        }

    def budget(self) -> int:
        """Return the number of tokens that one pass computes at most by default, from the memory free now."""
        return self.local_model.budget()

    def plan(
        self, sequences: TokenPairs, max_batch_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """Return the trees that a call of `score` would run, with `sequence_ids` that refer to `sequences`.

        Args:
            sequences: (context, continuation) pairs of token ids.
            max_batch_tokens: at most this many tokens are computed in one pass; by default from free memory.
            new_tokens: number of tokens generated after each sequence; memory is then set aside for the keys and
                values of these tokens and of the tree.

        Raises:
            ContextOverflowError, InputError, OutOfBudgetError: as `loglikelihood`.
        """
        return self.local_model.plan(sequences, max_batch_tokens, new_tokens=new_tokens)

    def score(
        self,
        sequences: TokenPairs,
        *,
        max_batch_tokens: int | None = None,
        trees: Sequence[PrefixTree] | None = None,
        top_tokens: int = 0,
    ) -> SequenceScores:
        """Score (context, continuation) pairs of token ids, the layer under `loglikelihood`.

        Args:
            sequences: contexts hold at least one token; an empty continuation scores 0.
            max_batch_tokens: at most this many tokens are computed in one pass; by default from free memory.
            trees: what `plan` returned for these sequences, if it was called already.
            top_tokens: also return this many of the most likely tokens at each place; the LM head then runs again.

        Raises:
            InputError: if a token id is out of range.
            ContextOverflowError, OutOfBudgetError, NumericsError: as `loglikelihood`.
        """
        with self._cache() as kept:
            return self._score(kept, sequences, max_batch_tokens, trees, top_tokens)

    def _score(
        self,
        kept: KeptKeys | None,
        sequences: TokenPairs,
        max_batch_tokens: int | None,
        trees: Sequence[PrefixTree] | None,
        top_tokens: int,
    ) -> SequenceScores:
        check_int("top_tokens", top_tokens, 0)
        if trees is not None:
            check_int("max_batch_tokens", max_batch_tokens, optional=True)
            accept("trees", trees, _TREES)
            held = 0
            for tree in trees:
                held += len(tree.leaves)
            expect(
                held == len(sequences), "trees", f"trees of {len(sequences)} sequences", f"trees of {held} sequences"
            )
        return score(
            self.local_model,
            sequences,
            max_batch_tokens=max_batch_tokens,
            trees=trees,
            kept=kept,
            top_tokens=top_tokens,
        )

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        *,
        token_logprobs: bool = False,
        special_tokens: bool = True,
        on_overflow: str = "error",
        max_batch_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Results[Loglikelihood]:
        """Return the log-likelihood of each continuation after its context, computing shared prefixes once.

        Args:
            requests: (context, continuation) pairs, as text (split into tokens by the evaluation harness's
                rule, see `TextEncoder.pair`) or as token ids.
            token_logprobs: also return each token's value.
            special_tokens: whether special tokens written out in a text are read as such, as the evaluation harness
                does. Turn it off for text from outside. It does not concern token ids.
            on_overflow: "error", or "truncate" to drop tokens from the left of a context that is too long.
            max_batch_tokens: at most this many tokens are computed in one pass; by default from free memory. It
                changes results by no more than rounding.
            progress: show a progress bar; None shows one on a terminal if it takes more than a second.

        Returns:
            One result for each request, in order; with `.stats`, `.passes` and `.seconds`. In a session,
            `.stats.reused` counts the tokens that were not computed again.

        Raises:
            InputError: if a continuation is empty or vanishes in tokenisation, or a token id is out of range.
            ContextOverflowError: if a request is longer than the model's context.
            OutOfBudgetError: if one sequence alone does not fit in memory.
            NumericsError: if a log-likelihood is not finite.
        """
        accept("progress", progress, _BOOL_OR_NONE)
        limits: Any = {"max_batch_tokens": max_batch_tokens, "progress": progress}
        with self._cache() as kept:
            return score_requests(
                partial(score, self.local_model, kept=kept, **limits),
                self.encoder,
                self.max_length,
                requests,
                token_logprobs=token_logprobs,
                special_tokens=special_tokens,
                on_overflow=on_overflow,
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
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        token_logprobs: bool = False,
        special_tokens: bool = False,
        on_overflow: str = "error",
        max_batch_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Results[list[Generation]]:
        """Generate `n` texts after each prompt.

        Shared prefixes are read once, and all texts are decoded together. A text does not depend on the other prompts,
        on their order or on how they were split, beyond rounding. The draws of a sample follow from the seed, its
        prompt and its number among the samples of equal prompts: repeated prompts continue the same random stream, so n
        copies give n different samples.

        Args:
            prompts: texts, or token ids as `prompt` returns them; an empty one is a beginning of text.
            max_new_tokens: at most this many tokens are generated, up to 2**20.
            n: number of texts for each prompt, up to 10,000.
            temperature: divides the logits; 0 decodes greedily.
            top_k: draw among this many most likely tokens.
            top_p: draw among the fewest most likely tokens whose probabilities sum to this.
            repetition_penalty: divides the positive logits, and multiplies the negative ones, of tokens in the prompt
                or the text so far (Keskar et al. 2019), also if decoding is greedy; `token_logprobs` are without it.
            seed: of the draws.
            stop: strings that end a text; they are cut off, with what follows them.
            stop_token_ids: token ids that end a text, besides the model's own end of turn or text.
            token_logprobs: also return each token's log-probability.
            special_tokens: whether special tokens written out in a text are read as such. By default they are plain
                text, so that a passage in a prompt cannot end the user's turn. It does not concern token ids.
            on_overflow: "error" rejects a prompt longer than the context; "truncate" drops tokens from the left of
                a prompt so that `max_new_tokens` fit. A text that reaches the end of the context stops there.
            max_batch_tokens: at most this many tokens are held by one pass, prompts and new tokens; by default from
                free memory.
            progress: show a progress bar; None shows one if standard error is a terminal.

        Returns:
            For each prompt its `n` `Generation`s, in order; with `.stats`, `.passes` and `.seconds`.

        Raises:
            InputError: if an argument or a token id is out of range.
            ContextOverflowError: if a prompt leaves no room for new tokens.
            OutOfBudgetError: if one prompt and its text alone do not fit in memory.
            NumericsError: if logits are not finite.
        """
        options = StepOptions(
            max_new_tokens=max_new_tokens,
            n=n,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
            stop_token_ids=stop_token_ids,
            token_logprobs=token_logprobs,
            special_tokens=special_tokens,
            on_overflow=on_overflow,
            max_batch_tokens=max_batch_tokens,
            progress=progress,
        )
        steps = self.generate_steps(prompts, options)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Results[list[Generation]] = end.value
                return found

    def generate_steps(self, prompts: Iterable[TextOrTokens], options: StepOptions) -> Steps:
        """Generate as `generate` does, and yield the texts so far after each step, between which other calls may run.

        Setting the `finish_reason` of a text that is not finished drops it.

        Raises:
            InputError, ContextOverflowError, OutOfBudgetError, NumericsError: as `generate`.
        """
        accept("options", options, _OPTIONS)
        with self._cache() as kept:
            return (yield from generate(self.local_model, prompts, options, kept))

    async def aloglikelihood(
        self, requests: Iterable[tuple[TextOrTokens, TextOrTokens]], **options: Any
    ) -> Results[Loglikelihood]:
        """Run `loglikelihood` in a thread, so that the event loop stays free.

        A task that is cancelled stops waiting; the pass itself still runs to its end.
        """
        return await asyncio.to_thread(self.loglikelihood, requests, **options)

    async def agenerate(self, prompts: Iterable[TextOrTokens], **options: Any) -> Results[list[Generation]]:
        """Run `generate` in a thread, as `aloglikelihood` runs `loglikelihood`."""
        return await asyncio.to_thread(self.generate, prompts, **options)
