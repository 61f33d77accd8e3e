"""Log-probabilities of target tokens from hidden states, without logits in memory."""

from fastreader.ops.linear_logprob.api import linear_logprob, linear_logprob_stats
from fastreader.ops.linear_logprob.schema import LogprobStats

__all__ = ["LogprobStats", "linear_logprob", "linear_logprob_stats"]
