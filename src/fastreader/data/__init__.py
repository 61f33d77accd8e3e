"""Questions with their passages, and their file formats.

`iter_examples`, `load_examples` (which detect the format from the keys) and `load_beir` read them, `save_examples`
writes them. `load_passages`, `iter_passages` and `sample_passages` read passages without questions, `load_questions`
questions without passages, and `load_qrels` relevance judgements.
"""

from typing import TYPE_CHECKING

from fastreader.core.lazy import lazy_names

if TYPE_CHECKING:
    from fastreader.data.beir import load_beir, load_qrels
    from fastreader.data.corpora import iter_passages, load_passages, sample_passages
    from fastreader.data.read import SkippedRows, iter_examples, load_examples, load_questions
    from fastreader.data.types import Example, Passage
    from fastreader.data.write import save_examples

__all__ = [
    "Example",
    "Passage",
    "SkippedRows",
    "iter_examples",
    "iter_passages",
    "load_beir",
    "load_examples",
    "load_passages",
    "load_qrels",
    "load_questions",
    "sample_passages",
    "save_examples",
]


# Readers of files check rows with pydantic, which a machine that only runs models need not have.
_HOME = {
    **dict.fromkeys(("load_beir", "load_qrels"), "beir"),
    **dict.fromkeys(("SkippedRows", "iter_examples", "load_examples", "load_questions"), "read"),
    **dict.fromkeys(("iter_passages", "load_passages", "sample_passages"), "corpora"),
    **dict.fromkeys(("Example", "Passage"), "types"),
    "save_examples": "write",
}
__getattr__, __dir__ = lazy_names(__name__, _HOME)
