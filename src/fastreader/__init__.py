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
    from fastreader.models.passage_cache.cache import CacheInfo, PassageCache
    from fastreader.passages.arrange import Arranger, arrange
    from fastreader.passages.attribution.attribute import attribute
    from fastreader.passages.attribution.results import Attribution
    from fastreader.passages.conflicts.find import conflicts
    from fastreader.passages.conflicts.results import Conflicts
    from fastreader.passages.fuse import fuse
    from fastreader.passages.ranking.rerank import arerank, rerank
    from fastreader.passages.ranking.results import Reranked, RerankResult
    from fastreader.passages.ranking.trec import save_trec_run
    from fastreader.passages.sufficiency.results import Sufficiency
    from fastreader.passages.sufficiency.sufficient import sufficient
    from fastreader.reader.pool import ReaderPool
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader
    from fastreader.reader.remote.server_reader import ServerReader
    from fastreader.scoring.api import permutation_cost, score_permutations
    from fastreader.scoring.known_passages import PassagesCost, cache_passages, passages_cost
    from fastreader.scoring.labels import Classified, classify
    from fastreader.scoring.results import PermutationScores
    from fastreader.scoring.sensitivity import sensitivity

__version__ = "0.2.0"

_HOME = {
    "Attribution": "passages.attribution.results",
    "CacheInfo": "models.passage_cache.cache",
    "Classified": "scoring.labels",
    "Conflicts": "passages.conflicts.results",
    "Example": "data",
    "FastreaderError": "errors",
    "InputError": "errors",
    "Generation": "core.protocol",
    "Loglikelihood": "core.protocol",
    "Passage": "data",
    "PassageCache": "models.passage_cache.cache",
    "PassagesCost": "scoring.known_passages",
    "PermutationScores": "scoring.results",
    "PrefixTree": "core.tree",
    "Reader": "reader.reader",
    "ReaderPool": "reader.pool",
    "ReaderProtocol": "core.protocol",
    "RerankResult": "passages.ranking.results",
    "Reranked": "passages.ranking.results",
    "Results": "core.protocol",
    "ScoringReader": "core.protocol",
    "Template": "reader.prompts.template",
    "ServerReader": "reader.remote.server_reader",
    "Sufficiency": "passages.sufficiency.results",
    "TreeStats": "core.tree",
    "arerank": "passages.ranking.rerank",
    "Arranger": "passages.arrange",
    "arrange": "passages.arrange",
    "attribute": "passages.attribution.attribute",
    "cache_passages": "scoring.known_passages",
    "classify": "scoring.labels",
    "conflicts": "passages.conflicts.find",
    "fuse": "passages.fuse",
    "load_examples": "data",
    "passages_cost": "scoring.known_passages",
    "permutation_cost": "scoring.api",
    "rerank": "passages.ranking.rerank",
    "save_examples": "data",
    "save_trec_run": "passages.ranking.trec",
    "score_permutations": "scoring.api",
    "sensitivity": "scoring.sensitivity",
    "sufficient": "passages.sufficiency.sufficient",
    **dict.fromkeys(("eor", "errors", "moi", "noise", "permutations", "statistics", "sure"), ""),
}
__all__ = [
    "Arranger",
    "Attribution",
    "CacheInfo",
    "Classified",
    "Conflicts",
    "Example",
    "FastreaderError",
    "Generation",
    "InputError",
    "Loglikelihood",
    "Passage",
    "PassageCache",
    "PassagesCost",
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
    "Sufficiency",
    "Template",
    "TreeStats",
    "arerank",
    "arrange",
    "attribute",
    "cache_passages",
    "classify",
    "conflicts",
    "eor",
    "errors",
    "fuse",
    "load_examples",
    "moi",
    "noise",
    "passages_cost",
    "permutation_cost",
    "permutations",
    "rerank",
    "save_examples",
    "save_trec_run",
    "score_permutations",
    "sensitivity",
    "statistics",
    "sufficient",
    "sure",
]


__getattr__, __dir__ = lazy_names(__name__, _HOME)
