"""The Power of Noise (Cuconasu et al. 2024): effects of the kind, number and place of passages on a reader's answers.

`gather` labels a question's passages and draws random ones, `layout` arranges them, `ask` runs a reader over all
layouts at once.
"""

from fastreader.noise.ask import MAX_NEW_TOKENS, NoiseAnswer, NoiseAnswers, ask, ask_cost
from fastreader.noise.attention import AnswerAttention, answer_attention, mean_entropies, mean_share
from fastreader.noise.distraction import distracting_effects
from fastreader.noise.hard import swap_answer, swapped_passages
from fastreader.noise.labels import Kind, has_answer, label
from fastreader.noise.layouts import Layout, LayoutSpec, MissingPassages, layout, oracle_grid, place, realistic_grid
from fastreader.noise.materials import Materials, by_title, gather
from fastreader.noise.plots import plot_accuracy, plot_entropy, plot_heat_map
from fastreader.noise.prompt import NoiseTemplate
from fastreader.noise.sources import DistractorPool, RandomSource, RandomWords
from fastreader.noise.summary import PRIMARY, LayoutCounts, MeasureMean, NoiseSummary, baseline_of, summarise
from fastreader.noise.tables import markdown

__all__ = [
    "MAX_NEW_TOKENS",
    "PRIMARY",
    "AnswerAttention",
    "DistractorPool",
    "Kind",
    "Layout",
    "LayoutCounts",
    "LayoutSpec",
    "Materials",
    "MeasureMean",
    "MissingPassages",
    "NoiseAnswer",
    "NoiseAnswers",
    "NoiseSummary",
    "NoiseTemplate",
    "RandomSource",
    "RandomWords",
    "answer_attention",
    "ask",
    "ask_cost",
    "baseline_of",
    "by_title",
    "distracting_effects",
    "gather",
    "has_answer",
    "label",
    "layout",
    "markdown",
    "mean_entropies",
    "mean_share",
    "oracle_grid",
    "place",
    "plot_accuracy",
    "plot_entropy",
    "plot_heat_map",
    "realistic_grid",
    "summarise",
    "swap_answer",
    "swapped_passages",
]
