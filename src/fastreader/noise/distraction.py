"""The distracting effect of a passage: how far it keeps a reader from saying that it holds no answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.tree import TreeStats
from fastreader.data.arguments import make_example
from fastreader.data.documents import PassageLike
from fastreader.data.types import Example, Passage
from fastreader.noise.prompt import NoiseTemplate
from fastreader.scoring.labels import label_logprobs

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol


@checked
def distracting_effects(
    reader: ReaderProtocol,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    *,
    template: NoiseTemplate | None = None,
    max_batch_tokens: int | None = None,
) -> npt.NDArray[np.float64]:
    """Return ``1 - P(no answer | passage alone, question)`` for each passage (arXiv 2505.06914, section 3): [N].

    The prompt asks for an answer, or for `template.no_answer` if the passage holds none. A passage without the answer
    after which the reader still answers distracts it. All passages are scored in one packed pass. A reader that never
    says so, as small ones, gives 1 to every passage.

    Args:
        reader: scores the label.
        question: a question; or an `Example`, which brings its passages.
        passages: the passages, `Passage` objects or texts.
        template: the prompt's texts; None uses `NoiseTemplate()`.
        max_batch_tokens: maximum number of tokens computed in one pass; None decides by free memory.

    Returns:
        float64 [N], between 0 and 1.

    Raises:
        InputError: if there is no passage.
        ContextOverflowError: if a prompt is longer than the model's context.
    """
    example = make_example(question, passages, None)
    asked = [(example.question, one) for one in example.passages]
    return effects(reader, asked, template or NoiseTemplate(), max_batch_tokens)[0]


def effects(
    reader: ReaderProtocol, asked: Sequence[tuple[str, Passage]], texts: NoiseTemplate, max_batch_tokens: int | None
) -> tuple[npt.NDArray[np.float64], TreeStats]:
    """Return the distracting effect of each passage for its question, and the tokens, all in one call."""
    prompts = [reader.prompt(texts.pieces(question, [one]), **texts.options()) for question, one in asked]
    label = reader.continuation(texts.no_answer, chat=False)  # after a space, since the lead comes before it
    values, stats = label_logprobs(reader, prompts, [label], max_batch_tokens)
    return -np.expm1(np.minimum(values[:, 0], 0.0)), stats
