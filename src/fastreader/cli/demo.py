"""fastreader demo."""

from __future__ import annotations

import time
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table

from fastreader.cli.inputs import use_cache
from fastreader.cli.options import CacheOption, DeviceOption, DtypeOption, ModelOption, PrecisionOption, ProgressOption
from fastreader.cli.screen import Screen, Text
from fastreader.cli.tables.scores import UNLIMITED
from fastreader.data import Example
from fastreader.statistics.measures.answers import exact_match

if TYPE_CHECKING:
    from fastreader.reader.reader import Reader
    from fastreader.scoring.results import PermutationScores


def demo(
    model: ModelOption = "smollm2-135m",
    progress: ProgressOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    precision: PrecisionOption = "fast",
    cache_dir: CacheOption = None,
) -> None:
    """Show on bundled questions what the order of passages does to an answer, and what scoring all orders costs.

    Each question has passages and candidate answers. Every cyclic order of the passages is scored, and the answer with
    the largest mean share over the orders is compared with the answer in the retriever's order alone. The scores of one
    question are then computed by transformers too, in the same run.
    """
    from fastreader.reader.reader import Reader
    from fastreader.scoring.api import score_permutations

    use_cache(cache_dir)
    reader = Reader.load(model, device=device, dtype=dtype, precision=precision)
    examples = bundled()
    scored = list(score_permutations(reader, examples, progress=progress))
    console = Screen()
    console = console if console.is_terminal else Screen(width=UNLIMITED)
    console.print(f"{reader!r}")
    console.print(verdicts(examples, scored))
    console.print(flip(examples, scored))
    console.print(side_by_side(reader, model, examples[0]))
    console.print(
        "Next: fastreader rerank questions.jsonl   or   fastreader ask questions.jsonl   with your own questions"
    )


def bundled() -> list[Example]:
    """Return the questions of the demo."""
    from fastreader.data import load_examples

    with files("fastreader.cli").joinpath("demo.jsonl").open("rb") as stream:
        return load_examples(stream.name)


def verdicts(examples: list[Example], scored: list[PermutationScores]) -> Table:
    """Show for each question the answer over all orders and in the retriever's order, right or wrong."""
    table = Table(header_style="bold", title="Answers: all orders together, and the retriever's order alone")
    for name in ("question", "all orders", "agreeing", "retriever's order"):
        table.add_column(name, justify="right" if name == "agreeing" else "left")
    for example, scores in zip(examples, scored, strict=True):
        best = scores.consensus().argmax()
        by_order = scores.logprobs.argmax(axis=1)
        first = int(by_order[_identity(scores)])
        table.add_row(
            scores.question,
            _marked(scores.candidates[best], example),
            f"{(by_order == best).sum()} of {len(by_order)}",
            _marked(scores.candidates[first], example),
        )
    return table


def flip(examples: list[Example], scored: list[PermutationScores]) -> RenderableType:
    """Show two orders of the same passages after which the reader prefers different answers."""
    for example, scores in zip(examples, scored, strict=True):
        winners = scores.logprobs.argmax(axis=1).tolist()
        right = [m for m, k in enumerate(winners) if _is_right(scores.candidates[k], example)]
        wrong = [m for m in range(len(winners)) if m not in right]
        if not (right and wrong):
            continue
        lines = [Text(f"The same passages in another order: {example.question}", style="bold")]
        for m in (right[0], wrong[0]):
            titles = ", ".join(example.passages[p].title for p in scores.permutations[m].tolist())
            line = Text(f"  {titles}: ")
            lines.append(line.append(_marked(scores.candidates[winners[m]], example)))
        return Group(*lines)
    return Text("No question changes its answer with the order of its passages for this reader.")


def side_by_side(reader: Reader, model: str, example: Example) -> RenderableType:
    """Time one question's scores by fastreader and by transformers, in turn, and compare the numbers."""
    from fastreader.cli.packing_gain import Group as Contexts
    from fastreader.cli.packing_gain import peers
    from fastreader.permutations import cyclic
    from fastreader.reader.prompts.pieces import encode
    from fastreader.reader.prompts.template import Template

    own = peers.model_beside(reader, model)
    pieces = encode(reader.encoder, Template(), example.question, example.passages, example.candidates)
    orders = cyclic(len(example.passages)).permutations.tolist()
    contexts = [Contexts(pieces.head + pieces.body(order) + pieces.tail(), pieces.candidates) for order in orders]
    pairs = [pair for context in contexts for pair in context.sequences()]
    ways: dict[str, Any] = {
        "fastreader": lambda: reader.score(pairs).logprob.tolist(),
        "transformers, batches of 8": lambda: peers.padded(own, contexts),
        "transformers, prefix cache": lambda: peers.prefix_cached(own, contexts),
    }
    seconds, values = {}, {}
    for name, run in ways.items():
        run()  # warm
        started = time.perf_counter()
        values[name] = run()
        seconds[name] = time.perf_counter() - started
    table = Table(header_style="bold", title=f"{len(pairs)} log-likelihoods of one question, in the same run")
    for name in ("way", "seconds", "times fastreader", "mean difference (nats)"):
        table.add_column(name, justify="left" if name == "way" else "right")
    ours = values["fastreader"]
    for name, taken in seconds.items():
        difference = sum(abs(a - b) for a, b in zip(values[name], ours, strict=True)) / len(ours)
        cells = ("1.0", "") if name == "fastreader" else (f"{taken / seconds['fastreader']:.1f}", f"{difference:.3f}")
        table.add_row(name, f"{taken:.2f}", *cells)
    return table


def _identity(scores: PermutationScores) -> int:
    rows: list[list[int]] = scores.permutations.tolist()
    return rows.index(sorted(rows[0]))


def _is_right(candidate: str, example: Example) -> bool:
    return exact_match(candidate, example.answers) > 0


def _marked(candidate: str, example: Example) -> Text:
    right = _is_right(candidate, example)
    return Text(f"{candidate} {'right' if right else 'wrong'}", style="green" if right else "red")
