"""Log-probabilities of target tokens from hidden states, without logits in memory."""

from fastreader.ops.linear_logprob.api import LogprobStats, linear_logprob, linear_logprob_stats, status

__all__ = ["LogprobStats", "linear_logprob", "linear_logprob_stats", "status"]
