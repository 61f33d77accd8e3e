"""save_trec_run: rankings as a TREC run, for ir-measures, trec_eval and PyTerrier."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fastreader.core.checked import checked
from fastreader.core.checks import check_text, expect
from fastreader.data.arguments import keyed
from fastreader.data.types import Example
from fastreader.data.write import save_examples
from fastreader.passages.ranking.results import Reranked


@checked
def save_trec_run(rankings: Iterable[Reranked], path: str | os.PathLike[str], *, tag: str = "fastreader") -> None:
    """Write rankings as a TREC run, lines ``qid Q0 docid rank score tag``, atomically.

    A question without an id gets its index as one, and a passage its index among the passages given. Scores are as in
    `save_examples`: the ranking's if they strictly descend in 32 bits, else descending integers.

    Args:
        rankings: as `rerank` returns them for several questions.
        path: the file to write; a name ending in ``.gz`` is gzipped.
        tag: name of the run.

    Raises:
        InputError: if an item is not a `Reranked`, an id or the tag has white space, or two passages of a question have
            one id.
        OSError: if the file cannot be written.
    """
    check_text("tag", tag)
    expect(len(tag.split()) == 1, "tag", "a name without white space", tag)
    save_examples(keyed(_examples(rankings)), path, "trec", tag=tag)


def _examples(rankings: Iterable[Reranked]) -> Iterator[Example]:
    for number, ranking in enumerate(rankings):
        expect(isinstance(ranking, Reranked), f"rankings[{number}]", "a Reranked", ranking)
        names = [result.passage.id or str(result.index) for result in ranking]
        repeated = sorted({name for name in names if names.count(name) > 1})
        expect(not repeated, f"rankings[{number}]", "passages with different ids", ", ".join(repeated))
        example = ranking.to_example()
        passages = [replace(passage, id=name) for passage, name in zip(example.passages, names, strict=True)]
        yield replace(example, passages=passages)
