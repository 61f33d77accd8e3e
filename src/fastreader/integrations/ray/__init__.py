"""Ray: rerank, score and study over an actor pool of Ray Data, each actor with its own reader, and Ray Serve."""

from fastreader.integrations.ray.actor import ReaderReference
from fastreader.integrations.ray.pool import ActorPool
from fastreader.integrations.ray.questions import rerank, rerank_dataset, score, score_dataset
from fastreader.integrations.ray.serve import deployment
from fastreader.integrations.ray.study import run_study

__all__ = [
    "ActorPool",
    "ReaderReference",
    "deployment",
    "rerank",
    "rerank_dataset",
    "run_study",
    "score",
    "score_dataset",
]
