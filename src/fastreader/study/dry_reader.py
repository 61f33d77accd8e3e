"""DryReader: a reader of a model's tokenizer and config, which counts tokens instead of running the model."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.garbage import without_collections
from fastreader.core.options import GenerateOptions
from fastreader.core.protocol import GenerateArguments, Generation, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, TokenPairs, TreeStats, partition
from fastreader.data.fingerprints import NOT_READ
from fastreader.errors import ContextOverflowError
from fastreader.models.config.facts import RotaryRegimes, context_length, rotary_regimes
from fastreader.models.loading.decide import decide
from fastreader.models.loading.find import Found, find
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.read import read_without_weights
from fastreader.models.loading.sizes import stored
from fastreader.models.machine.arithmetic import Arithmetic, machine_rates
from fastreader.reader.fitting import leave_room
from fastreader.reader.loglikelihood import ScoreReader
from fastreader.reader.prompts.chat_template import start_renderer
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.relevance import RelevanceCalls, RelevanceWriter

BUDGET = 1 << 17
"""Tokens of one pass, which only decides how far direct calls share prefixes: real readers take it from free memory."""


_KEPT = 100_000  # texts whose tokens are kept; methods read the same passages
_PRIME = 997
_NOTHING = TreeStats(0, 0, 0, 0)


class _KeepingEncoder(TextEncoder):
    """An encoder that keeps the tokens of every text, since each method encodes the same passages again."""

    def __init__(self, tokenizer: Any) -> None:
        self._kept: dict[tuple[str, bool, bool], list[int]] = {}
        super().__init__(tokenizer)

    def _encode(self, texts: Sequence[str], trusted: bool = False, special: bool = False) -> list[list[int]]:
        missing = [text for text in dict.fromkeys(texts) if (text, trusted, special) not in self._kept]
        if len(self._kept) + len(missing) > _KEPT:
            self._kept.clear()
            missing = list(dict.fromkeys(texts))
        for text, tokens in zip(missing, super()._encode(missing, trusted, special) if missing else [], strict=True):
            self._kept[text, trusted, special] = tokens
        return [list(self._kept[text, trusted, special]) for text in texts]


@dataclass(frozen=True)
class Speed:
    """The rate at which linear layers run.

    Attributes:
        products: how they multiply.
        gflops: GFLOP/s of all threads, by the rate of one that was measured on this machine.
        flops_per_token: of the linear layers without the LM head: two for each weight.
    """

    products: str
    gflops: float
    flops_per_token: int

    def seconds(self, tokens: int) -> float:
        """Return the time of the linear layers for a number of tokens that are read, a lower bound for the model's."""
        return tokens * self.flops_per_token / (self.gflops * 1e9)


@checked
class DryReader(ScoreReader, RelevanceCalls):
    """A `ScoringReader` without weights, for the cost of methods whose results do not matter.

    With `longest`, log-likelihoods are made-up numbers that differ between texts, and every reply is made-up words up
    to the limit. Else all texts are equally likely, so that what is ranked by them keeps its order, and replies are
    empty.

    Attributes:
        name: of the reader.
        max_length: as `Reader.max_length`.
        longest: whether replies are as long as allowed and scores differ; may be set at any time.
        speed: of this machine's linear layers; None if it is unknown.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        about: Mapping[str, str],
        max_length: int | None = None,
        *,
        relevance: RelevanceWriter | None = None,
        speed: Speed | None = None,
        longest: bool = True,
    ) -> None:
        super().__init__(encoder)
        self.name, self._about, self._max_length = about["name"], dict(about), max_length
        self.relevance_writer, self.speed, self.longest = relevance, speed, longest
        self.regimes = RotaryRegimes("fixed", 0)
        self._filler = max(1, len(encoder.piece(" the")))

    @classmethod
    def load(cls, model: str, **options: Any) -> Self:
        """Load the tokenizer and the config of a reader.

        Args:
            model: a name or a path, as `Reader.load` takes it.
            **options: of `Reader.load`.

        Raises:
            FastreaderError: as `Reader.load`, for all that does not take the weights.
        """
        start_renderer()  # of the chat template, while transformers is imported
        with without_collections():
            found = find(LoadOptions(model, **options), to_build=False)
            tokenizer, scheme = read_without_weights(found)
        encoder, arithmetic = _KeepingEncoder(tokenizer), decide(found).arithmetic
        config = found.config.get_text_config()
        regimes = rotary_regimes(config)
        about = {
            "name": found.name,
            **({} if found.kind == "packaged" and found.adapter is None else {"revision": NOT_READ}),
            "device": arithmetic.where,
            "dtype": arithmetic.stored,
            "precision": arithmetic.precision,
        }
        relevance = None if scheme is None else RelevanceWriter(encoder, scheme)
        speed = _speed(found, arithmetic)
        reader = cls(encoder, about, context_length(config, regimes), relevance=relevance, speed=speed)
        reader.regimes = regimes
        return reader

    @classmethod
    def of_engine(cls, tokenizer: str, max_length: int | None = None) -> Self:
        """Return a reader for the cost of requests to an engine, which is not asked.

        Args:
            tokenizer: name or folder of the tokenizer.
            max_length: of the engine's model, in tokens; None sets no limit.

        Raises:
            InputError: if there is no such tokenizer.
        """
        from fastreader.reader.remote.server_reader import tokenizer_for

        expect(bool(tokenizer), "tokenizer", "its name, since an engine is not asked", tokenizer)
        about = {"name": tokenizer, "device": "engine", "dtype": "unknown", "precision": "unknown"}
        return cls(_KeepingEncoder(tokenizer_for(tokenizer)), about, max_length)

    @property
    def max_length(self) -> int | None:
        """See `ReaderBase.max_length`."""
        return self._max_length

    def describe(self) -> dict[str, str]:
        """Return name, device, dtype and precision, and `NOT_READ` for a revision, which only the weights tell."""
        return dict(self._about)

    def budget(self) -> int:
        """Return `BUDGET`."""
        return BUDGET

    def plan(
        self, sequences: TokenPairs, max_batch_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """Return trees as `ReaderBase.plan` does, with a fixed number of tokens instead of free memory.

        Raises:
            ContextOverflowError: if a sequence is longer than the model's context.
        """
        groups: dict[int, list[int]] = {}
        for i, (context, continuation) in enumerate(sequences):
            length = len(context) + max(len(continuation) - 1, 0)
            if self._max_length is not None and length > self._max_length:
                raise ContextOverflowError(
                    f"sequences[{i}] is {length} tokens long, the context of {self.name} is {self._max_length}"
                )
            groups.setdefault(self.regimes.of(length), []).append(i)
        return [
            replace(tree, sequence_ids=np.asarray(members)[tree.sequence_ids])
            for members in groups.values()
            for tree in partition([sequences[i] for i in members], max_batch_tokens or BUDGET, new_tokens)
        ]

    def score(
        self, sequences: TokenPairs, *, max_batch_tokens: int | None = None, trees: Sequence[PrefixTree] | None = None
    ) -> SequenceScores:
        """Return made-up scores of (context, continuation) pairs, with the tokens that scoring them would take."""
        planned = self.plan(sequences, max_batch_tokens) if trees is None else trees
        stats = _NOTHING
        for tree in planned:
            stats += tree.stats
        nats = _nats if self.longest else _equal
        values = [np.full(len(tokens), nats(context, tokens)) for context, tokens in sequences]
        return SequenceScores(
            logprob=np.array([each.sum() for each in values]),
            num_tokens=np.array(list(map(len, values)), dtype=np.int64),
            is_greedy=np.zeros(len(values), dtype=np.bool_),
            token_logprobs=values,
            stats=stats,
            passes=len(planned),
            seconds=0.0,
            relevance=None if self.relevance_writer is None else np.zeros(len(values)),
        )

    def generate(
        self, prompts: Iterable[TextOrTokens], **options: Unpack[GenerateArguments]
    ) -> Results[list[Generation]]:
        """Return placeholders, with the tokens of the prompts and, with `longest`, of as many new ones as may come."""
        given = GenerateOptions(**options)
        shown, replies = [], []
        for i, prompt in enumerate(prompts):
            name = f"prompts[{i}]"
            tokens = self.encoder.prompt_tokens(prompt, name, special_tokens=given.special_tokens)
            limit, most = self._max_length, given.max_new_tokens
            kept = leave_room(tokens, most, limit, given.on_overflow, name=name, of=self.name)
            room = most if limit is None else min(most, limit + 1 - len(kept))
            shown.append((kept, ()))
            replies.append([self._reply(kept, room, number, len(tokens)) for number in range(given.n)])
        if not shown:
            return Results([], _NOTHING, 0)
        read = PrefixTree.build(shown).stats
        new = sum(len(reply.token_ids) for texts in replies for reply in texts)
        stats = TreeStats(read.sequences * given.n, read.total_tokens * given.n + new, read.computed_tokens + new, 0)
        return Results(replies, stats)

    def _reply(self, prompt: Sequence[int], room: int, number: int, length: int) -> Generation:
        """Return a placeholder of at most `room` tokens, with a first word that no other reply has."""
        truncated = length - len(prompt)
        if not self.longest:
            return Generation("", [], "eos", len(prompt), truncated=truncated)
        first = f"w{zlib.crc32(np.asarray(prompt, dtype=np.int64).tobytes()) % 10_000}-{number}"
        text = first + " the" * max(0, (room - len(self.encoder.piece(first))) // self._filler)
        return Generation(text, [0] * room, "length", len(prompt), truncated=truncated)


def _nats(context: Sequence[int], tokens: Sequence[int]) -> float:
    """Return a number in (-2, -1], the same for all orders of the same tokens, which no solver then has to explain."""
    return -1 - (sum(context) + sum(tokens)) % _PRIME / _PRIME


def _equal(context: Sequence[int], tokens: Sequence[int]) -> float:
    return -1.0


def _speed(found: Found, arithmetic: Arithmetic) -> Speed | None:
    """Return the speed of a model's linear layers on this machine's CPU, or None for other devices and for hub ids."""
    import torch

    folder = Path(found.source)
    if arithmetic.device.type != "cpu" or arithmetic.products == "torch":
        return None
    if found.file is not None:
        weights = sum(math.prod(tensor.shape) for tensor in found.file.tensors.values())
    elif folder.is_dir() and (counts := stored(folder)) is not None:
        weights = counts[0]
    else:
        return None
    config = found.config.get_text_config()
    matrices = 1 if config.tie_word_embeddings else 2
    layers = weights - matrices * config.vocab_size * config.hidden_size
    rate = machine_rates().get(arithmetic.products)
    return Speed(arithmetic.products, rate * torch.get_num_threads(), 2 * layers) if rate and layers > 0 else None
