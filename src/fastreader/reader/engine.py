"""Engine: what reading needs: the model, its tokenizer, a lock around a pass, and the plan of a call."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from fastreader.core.tree import PrefixTree, Tokens
from fastreader.errors import FastreaderError
from fastreader.models import memory
from fastreader.models.adapter import TreeModel
from fastreader.models.precision import Arithmetic
from fastreader.reader.planning import plan
from fastreader.reader.prompts.encoder import TextEncoder


class Engine:
    """A model with its tokenizer, as log-likelihoods, generation and sessions use it.

    Attributes:
        encoder: the tokenizer, by pieces.
        name: what the model was loaded from.
        arithmetic: device, storage type and precision, and why.
        revision: distinguishes its weights from others of that name; empty for a packaged model.
        lock: held during a pass and the choice of its tokens.
    """

    def __init__(
        self, model: TreeModel, encoder: TextEncoder, name: str, arithmetic: Arithmetic, revision: str = ""
    ) -> None:
        self._model: TreeModel | None = model
        self.encoder = encoder
        self.name = name
        self.arithmetic = arithmetic
        self.revision = revision
        self.lock = threading.Lock()

    @property
    def model(self) -> TreeModel:
        """The model, which runs packed trees.

        Raises:
            FastreaderError: if the reader was closed.
        """
        if self._model is None:
            raise FastreaderError(f"{self.name}: the reader was closed; load it again")
        return self._model

    @property
    def max_length(self) -> int | None:
        """Longest input the model takes, in tokens; None if its config sets no limit."""
        return self.model.max_length

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens by which the model ends a turn or a text: its generation config's and its tokenizer's."""
        own = self.encoder.tokenizer.eos_token_id
        return self.model.end_tokens | (frozenset() if own is None else {int(own)})

    def describe(self) -> dict[str, str]:
        """Return name, revision, device, dtype, precision and the forward's path, as results carry them."""
        return {
            "name": self.name,
            **({"revision": self.revision} if self.revision else {}),
            "device": str(self.arithmetic.device),
            "dtype": str(self.arithmetic.dtype).removeprefix("torch."),
            "precision": self.arithmetic.precision,
            "forward": self.model.forward_path,
        }

    def budget(self) -> int:
        """Return the number of tokens that one pass computes at most by default, from the memory free now."""
        return memory.default_budget(self.model.bytes_per_token, self.model.device, self.model.overhead)

    def plan(
        self, sequences: Sequence[tuple[Tokens, Tokens]], max_batch_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """Return the trees of a call; `Reader.plan` documents it."""
        return plan(self.model, sequences, max_batch_tokens, new_tokens)

    def close(self) -> None:
        """Release the model."""
        with self.lock:
            self._model = None
