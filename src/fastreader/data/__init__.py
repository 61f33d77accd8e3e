"""Questions with their passages, and the file formats they come in.

Read by `iter_examples`, `load_examples` (the format is told from the keys) and `load_beir`; written by
`save_examples`. Passages without a question are read by `load_passages`, questions without passages by
`load_questions`, relevance judgements by `load_qrels`.
"""

from fastreader.data.beir import load_beir, load_qrels
from fastreader.data.corpus import load_passages
from fastreader.data.questions import load_questions
from fastreader.data.read import SkippedRows, iter_examples, load_examples
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
