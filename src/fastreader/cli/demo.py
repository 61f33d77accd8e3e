"""fastreader demo."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastreader.cli.options import ProgressOption, ReaderArguments, spread
from fastreader.cli.screen import Screen, Text
from fastreader.data import Example
from fastreader.errors import InputError

if TYPE_CHECKING:
    from fastreader.reader.reader import Reader
    from fastreader.scoring.results import PermutationScores

_WIDTH = 100  # columns if standard output is not a terminal
# Passages arranged by BM25 against the retriever's order, in nats of the right answers: studies/results/evidence.
STUDY = {"estimate": 0.64, "low": 0.46, "high": 0.82, "questions": 700}


@spread
def demo(*, reader: ReaderArguments, progress: ProgressOption = None) -> None:
    """Show how the order of passages changes an answer, what fastreader does about it, and what it costs.

    One bundled question is scored in five orders of its passages, the passages are arranged for this reader, the
    passages of another question are reranked, and plain transformers computes the same scores.
    """
    loaded = reader.load()
    orders, ranking = bundled()
    screen = Screen()
    screen = screen if screen.is_terminal else Screen(width=_WIDTH)
    screen.print(Text(repr(loaded), "dim"))
    retrieved = _show_orders(screen, loaded, orders, progress)
    _show_bias(screen, loaded, orders, retrieved)
    _show_ranking(screen, loaded, ranking)
    _show_cost(screen, loaded, reader, orders)
    _heading(screen, "5. Over many questions")
    screen.print(
        f"Our study: fr.arrange adds {STUDY['estimate']:+.2f} [{STUDY['low']:.2f}, {STUDY['high']:.2f}] nats to the "
        f"right answers, against the retriever's order (95% interval, {STUDY['questions']} questions of NQ-open, five "
        "passages, SmolLM2-135M). All methods, and where they do not help: docs/which-method.md",
        highlight=False,
    )
    _heading(screen, "6. Your own questions")
    line = '{"question": "...", "ctxs": [{"text": "..."}, {"text": "..."}], "candidates": ["...", "..."]}'
    screen.print(Text(f"A file with a line for each question:\n  {line}"))
    screen.print(Text("Next: fastreader score questions.jsonl --limit 3", "bold"))


def bundled() -> list[Example]:
    """Return the two questions of the demo: one whose answer depends on the order, and one to rerank."""
    from fastreader.data import load_examples

    with files("fastreader.cli").joinpath("demo.jsonl").open("rb") as stream:
        return load_examples(stream.name)


def flips(scores: PermutationScores) -> str:
    """Say which answers the orders give, whether or not they differ."""
    winners = [scores.candidates[k] for k in scores.logprobs.argmax(axis=1)]
    counts = Counter(winners).most_common()
    if len(counts) == 1:
        return f"This reader answers {winners[0]!r} in all {len(winners)} orders: no flip here."
    said = ", ".join(f"{answer!r} in {count}" for answer, count in counts)
    return f"The same passages, another order, another answer: {said} of {len(winners)} orders."


def _show_orders(screen: Screen, reader: Reader, example: Example, progress: bool | None) -> PermutationScores:
    """Show the answers under cyclic orders, and return the scores, the retriever's order first."""
    from fastreader.cli.tables.scores import heat_map
    from fastreader.scoring.api import score_permutations

    _heading(screen, f"1. {example.question}")
    for place, passage in enumerate(example.passages, 1):
        right = "  (right)" if passage.is_gold else ""
        screen.print(Text(f"  {place}  {passage.text}{right}"))
    (scores,) = score_permutations(reader, [example], progress=progress)
    screen.print("Probability of each answer (* the largest) after each order, the retriever's first:")
    screen.print(heat_map(scores, shaded=screen.color_system is not None and not screen.no_color))
    screen.print(Text(flips(scores), "bold"))
    return scores


def _show_bias(screen: Screen, reader: Reader, example: Example, retrieved: PermutationScores) -> None:
    """Show what each place counts for the reader, and the answer after the passages are arranged by that."""
    from fastreader.passages.arrange import Arranger, arrange
    from fastreader.scoring.api import score_permutations

    _heading(screen, "2. Where this reader looks, and fr.arrange")
    try:
        arranger = Arranger.for_reader(reader)
    except InputError:
        screen.print(
            "No position bias is known for this reader. Measure it from 20 questions or more, without labels: "
            "fastreader calibrate questions.jsonl --install",
            highlight=False,
        )
        return
    bias = arranger.bias(len(example.passages)).tolist()
    for place, value in enumerate(bias, 1):
        screen.print(Text(f"  place {place}  {value:+.2f}  {('+' if value > 0 else '-') * round(20 * abs(value))}"))
    passages = arrange(example.passages, arranger)
    arranged = [replace(example, passages=passages)]
    (scores,) = score_permutations(reader, arranged, permutations="identity", progress=False)
    order = " ".join(str(example.passages.index(passage) + 1) for passage in passages)
    before, after = ((s.candidates[s.logprobs[0].argmax()], s.probabilities()[0].max()) for s in (retrieved, scores))
    best = bias.index(max(bias)) + 1
    screen.print(Text(f"fr.arrange orders them {order}: the retriever's best at place {best}. No model runs for that."))
    screen.print(
        Text(f"Retriever's order: {before[0]!r} ({before[1]:.2f}). Arranged: {after[0]!r} ({after[1]:.2f}).", "bold")
    )


def _show_ranking(screen: Screen, reader: Reader, example: Example) -> None:
    """Show the passages of a question by relevance."""
    from fastreader.cli.tables.passages import reranked_table
    from fastreader.passages.ranking import rerank

    ranked = rerank(reader, example.question, example.passages)
    places = [result.index + 1 for result in ranked]
    gold = next(i for i, passage in enumerate(example.passages, 1) if passage.is_gold)
    _heading(screen, "3. fr.rerank")
    screen.print(reranked_table(ranked))
    screen.print(
        Text(f"The passage with the answer: place {gold} by the retriever, {places.index(gold) + 1} now.", "bold")
    )


def _show_cost(screen: Screen, reader: Reader, arguments: ReaderArguments, example: Example) -> None:
    """Time the scores of the first question, and the same scores by plain transformers."""
    from fastreader.permutations import cyclic
    from fastreader.reader.prompts.pieces import encode
    from fastreader.reader.prompts.template import Template

    _heading(screen, "4. The same scores by plain transformers")
    pieces = encode(reader.encoder, Template(), example.question, example.passages, example.candidates)
    orders = cyclic(len(example.passages)).permutations.tolist()
    contexts = [pieces.head + pieces.body(order) + pieces.tail() for order in orders]
    sequences = [(context, candidate) for context in contexts for candidate in pieces.candidates]
    model = plain_model(reader, arguments.model, arguments.adapter)
    plain_scores(model, sequences[:1])  # the first call allocates
    started = time.perf_counter()
    packed = reader.score(sequences).logprob.tolist()
    between = time.perf_counter()
    plain = plain_scores(model, sequences)
    seconds, plain_seconds = between - started, time.perf_counter() - between
    given = sum(len(context) + len(candidate) for context, candidate in sequences)
    computed = sum(map(len, reader.plan(sequences)))
    apart = [abs(a - b) for a, b in zip(packed, plain, strict=True)]
    dtype = str(model.dtype).removeprefix("torch.")
    screen.print(Text(f"  fastreader    {seconds:6.2f} s  {computed:6,} tokens, each shared one once"))
    screen.print(Text(f"  transformers  {plain_seconds:6.2f} s  {given:6,} tokens, one text at a time, {dtype}"))
    ratio = plain_seconds / seconds
    screen.print(Text(f"{ratio:.1f} times as fast. The numbers differ by at most {max(apart):.2g} nats.", "bold"))
    if dtype != "float32":
        worst = apart.index(max(apart))
        (exact,) = plain_scores(model.float(), sequences[worst : worst + 1])
        screen.print(
            f"That is rounding. Where they differ most, transformers in float32 gives {exact:.2f}: fastreader is off "
            f"by {abs(packed[worst] - exact):.2f}, transformers in {dtype} by {abs(plain[worst] - exact):.2f} nats.",
            highlight=False,
        )


def _heading(screen: Screen, text: str) -> None:
    screen.print()
    screen.print(Text(text, "bold cyan"))


def plain_model(reader: Reader, model: str | os.PathLike[str], adapter: str | None = None) -> Any:
    """Return transformers' model of a reader, with plain weights in the type of the reader's products."""
    import torch

    from fastreader.models.loading.load import load
    from fastreader.models.loading.options import LoadOptions

    own = reader.arithmetic
    dtype = own.dtype
    if own.formats:  # float32 holds the values of a quantised file
        dtype = torch.bfloat16 if own.products == "bf16" else torch.float32
    options = LoadOptions(model, own.device, dtype, "exact", adapter=adapter, keep_integers=False)
    return load(options).model.eval()


def plain_scores(model: Any, sequences: Sequence[tuple[list[int], list[int]]]) -> list[float]:
    """Return the log-likelihood of each continuation after its context (token ids), one forward pass for each."""
    import torch

    found = []
    with torch.inference_mode():
        for context, continuation in sequences:
            ids = torch.tensor([context + continuation], device=model.device)
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(continuation) + 1).logits[0, :-1]
            chosen = torch.tensor(continuation, device=logits.device)[:, None]
            found.append(float(logits.float().log_softmax(-1).gather(1, chosen).sum()))
    return found
