"""Questions with their passages, and their file formats.

`iter_examples`, `load_examples` (which detect the format from the keys) and `load_beir` read them, `save_examples`
writes them. `load_passages` reads passages without questions, `load_questions` questions without passages, and
`load_qrels` relevance judgements.
"""

from fastreader.data.beir import load_beir, load_qrels
from fastreader.data.read import SkippedRows, iter_examples, load_examples, load_passages, load_questions
from fastreader.data.types import Example, Passage
from fastreader.data.write import save_examples

__all__ = [
    "Example",
    "Passage",
    "SkippedRows",
    "iter_examples",
    "load_beir",
    "load_examples",
    "load_passages",
    "load_qrels",
    "load_questions",
    "save_examples",
]
