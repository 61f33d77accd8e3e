"""fastreader: score every ordering of the retrieved passages in one pass, and decide with the scores.

The names below load on first use, so that reading files or making orderings imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.core.lazy import lazy_names

if TYPE_CHECKING:
    from fastreader import sure
    from fastreader.core.protocol import Generation, Loglikelihood, ReaderProtocol, Results, ScoringReader
    from fastreader.core.tree import PrefixTree, TreeStats
    from fastreader.data import Example, Passage, load_examples, save_examples
    from fastreader.errors import FastreaderError, InputError
    from fastreader.moi.arrange import arrange
    from fastreader.moi.conflicts.api import conflicts
    from fastreader.moi.conflicts.results import Conflicts
    from fastreader.moi.ranking.api import arerank, rerank
    from fastreader.moi.ranking.results import Reranked, RerankResult
    from fastreader.moi.ranking.trec import save_trec_run
    from fastreader.reader.pool import ReaderPool
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader
    from fastreader.reader.server import ServerReader
    from fastreader.scoring.api import permutation_cost, score_permutations
    from fastreader.scoring.results import PermutationScores

__version__ = "0.2.0"

_HOME = {
    "Conflicts": "moi.conflicts.results",
    "Example": "data",
    "FastreaderError": "errors",
    "InputError": "errors",
    "Generation": "core.protocol",
    "Loglikelihood": "core.protocol",
    "Passage": "data",
    "PermutationScores": "scoring.results",
    "PrefixTree": "core.tree",
    "Reader": "reader.reader",
    "ReaderPool": "reader.pool",
    "ReaderProtocol": "core.protocol",
    "RerankResult": "moi.ranking.results",
    "Reranked": "moi.ranking.results",
    "Results": "core.protocol",
    "ScoringReader": "core.protocol",
    "Template": "reader.prompts.template",
    "ServerReader": "reader.server",
    "TreeStats": "core.tree",
    "arerank": "moi.ranking.api",
    "arrange": "moi.arrange",
    "conflicts": "moi.conflicts.api",
    "load_examples": "data",
    "permutation_cost": "scoring.api",
    "rerank": "moi.ranking.api",
    "save_examples": "data",
    "save_trec_run": "moi.ranking.trec",
    "score_permutations": "scoring.api",
    **dict.fromkeys(("eor", "errors", "moi", "noise", "permutations", "statistics", "sure"), ""),
}
__all__ = [
    "Conflicts",
    "Example",
    "FastreaderError",
    "Generation",
    "InputError",
    "Loglikelihood",
    "Passage",
    "PermutationScores",
    "PrefixTree",
    "Reader",
    "ReaderPool",
    "ReaderProtocol",
    "RerankResult",
    "Reranked",
    "Results",
    "ScoringReader",
    "ServerReader",
    "Template",
    "TreeStats",
    "arerank",
    "arrange",
    "conflicts",
    "eor",
    "errors",
    "load_examples",
    "moi",
    "noise",
    "permutation_cost",
    "permutations",
    "rerank",
    "save_examples",
    "save_trec_run",
    "score_permutations",
    "statistics",
    "sure",
]


__getattr__, __dir__ = lazy_names(__name__, _HOME)
