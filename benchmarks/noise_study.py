"""The Power of Noise on real questions: kind, number and place of passages against a reader's accuracy.

Asks every layout of a question in one generation and appends a row a question, so a stopped run continues where it
was. Then (or alone, with --report) writes report.md, report.json and figures next to the rows.

    python benchmarks/noise_study.py questions.jsonl.gz pool.jsonl.gz --questions 300 --output runs/noise

The primary contrast is fixed before the run: it is part of the settings that every row carries.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastreader import Example, Reader, load_examples, noise
from fastreader.data import load_passages
from fastreader.errors import InputError
from fastreader.jsonl import ResultLog, iter_results
from fastreader.progress import track
from fastreader.retrieval_measures import retrieval_measures
from fastreader.statistics import bootstrap, paired_bootstrap, wilcoxon

COUNTS = (1, 2, 4, 8)
WATCHED = ("gold", "random:1:near", "random:8:near", "random:8:far", "distracting:8:near")

# Accuracy of Llama2-7B, tables 1 and 2 of the paper: far, mid, near.
PUBLISHED_GOLD = 0.5642
PUBLISHED = {
    "distracting:1": (0.4586, None, 0.4283),
    "distracting:2": (0.3455, 0.3322, 0.3974),
    "distracting:4": (0.2745, 0.2857, 0.3795),
    "distracting:8": (0.2643, 0.2268, 0.3748),
    "random:1": (0.4733, None, 0.4862),
    "random:2": (0.3776, 0.3928, 0.5032),
    "random:4": (0.3109, 0.3998, 0.5221),
    "random:8": (0.3106, 0.3734, 0.5609),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="questions with retrieved passages, one flagged as gold, and answers")
    parser.add_argument("pool", type=Path, help="passages to draw random ones from, one JSON object a line")
    parser.add_argument("--output", type=Path, required=True, help="folder of the run")
    parser.add_argument("--questions", type=int, default=300, help="with a gold passage; those without one are extra")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", default="pool", help="pool, words (50 random ones), or another file of passages")
    parser.add_argument("--hard", action="store_true", help="also distractors made by swapping the answer")
    parser.add_argument("--retrieved", type=int, nargs="*", default=[4], help="numbers of retrieved passages")
    parser.add_argument("--layouts", nargs="*", help="these layouts only")
    parser.add_argument("--primary", default=noise.PRIMARY, help="layout whose contrast is stated beforehand")
    parser.add_argument("--attention", type=int, default=0, help="questions whose answers' attention is taken")
    parser.add_argument("--max-tokens", type=int, help="tokens a pass computes at most")
    parser.add_argument("--report", action="store_true", help="only write the report of the rows there are")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    examples = load_examples(arguments.data)
    if not arguments.report:
        run(arguments, examples)
    report(arguments.output, examples)


def run(arguments: argparse.Namespace, examples: list[Example]) -> None:
    reader = Reader.load(arguments.model, precision=arguments.precision)
    template = noise.NoiseTemplate()
    layouts = arguments.layouts or study_layouts(arguments.hard, arguments.retrieved)
    if arguments.primary not in layouts:
        raise SystemExit(f"--primary {arguments.primary} is not among the layouts")
    settings = {
        "reader": reader.describe(),
        "data": digest(arguments.data),
        "pool": digest(arguments.pool),
        "random": digest(Path(arguments.random)) if arguments.random not in ("pool", "words") else arguments.random,
        "layouts": layouts,
        "primary": arguments.primary,
        "template": template.to_dict(),
        "max_new_tokens": noise.MAX_NEW_TOKENS,
        "seed": arguments.seed,
    }
    chosen = list(choose(examples, arguments.questions))
    prepare = preparer(arguments, examples)
    with ResultLog(arguments.output / "answers.jsonl", settings=settings, resume=True) as log:
        todo = [i for i in chosen if str(i) not in log.done]
        with track("noise", len(todo), "questions", None) as advance:
            for i in todo:
                materials = prepare(i)
                results = noise.ask(
                    reader, [materials], layouts, template=template, max_tokens=arguments.max_tokens, progress=False
                )
                row = {
                    "question": materials.question,
                    "right_answers": list(materials.answers),
                    **results[0].to_dict(),
                    "given": results.stats.given,
                    "computed": results.stats.computed,
                    "seconds": round(results.seconds, 3),
                }
                log.append(str(i), row)
                advance(1)
    if arguments.attention:
        watch(arguments, reader, template, settings, prepare)


def watch(arguments: argparse.Namespace, reader: Reader, template: Any, settings: dict[str, Any], prepare: Any) -> None:
    """Attention of the reader's own answers under some layouts, for the first questions that have them all."""
    settings = {**settings, "layouts": list(WATCHED)}
    answers = dict(answers_of(arguments.output))
    with ResultLog(arguments.output / "attention.jsonl", settings=settings, resume=True) as log:
        ready = [
            key
            for key, row in answers.items()
            if all(name in row.answers and row.answers[name].text.strip() for name in WATCHED)
        ][: arguments.attention]
        with track("attention", len(ready), "questions", None) as advance:
            for key in ready:
                if key not in log.done:
                    texts = {name: answers[key].answers[name].text for name in WATCHED}
                    taken = noise.answer_attention(reader, prepare(int(key)), texts, template=template)
                    log.append(key, {name: attention.to_dict() for name, attention in taken.items()})
                advance(1)


def study_layouts(hard: bool, retrieved: list[int]) -> list[str]:
    kinds = ["distracting", "random", *(["hard"] if hard else [])]
    return ["closed_book", *noise.oracle_grid(kinds, COUNTS), *noise.realistic_grid(retrieved, [0, *COUNTS])]


def choose(examples: list[Example], questions: int) -> Iterator[int]:
    """Examples in file order up to so many with a gold passage; those without one on the way are taken along."""
    gold = 0
    for i, example in enumerate(examples):
        if gold == questions:
            return
        gold += any(p.is_gold for p in example.passages)
        yield i
    if gold < questions:
        raise SystemExit(f"--questions {questions}: the file has {gold} questions with a gold passage")


def preparer(arguments: argparse.Namespace, examples: list[Example]) -> Any:
    pool = load_passages(arguments.pool)
    source: noise.RandomSource
    if arguments.random == "words":
        source = noise.Words.of(pool, seed=arguments.seed)
    else:
        drawn = pool if arguments.random == "pool" else load_passages(arguments.random)
        source = noise.Pool(drawn, arguments.seed)
    titles = noise.by_title(pool)

    def prepare(i: int) -> noise.Materials:
        return noise.gather(
            examples[i],
            random=source,
            random_count=max(COUNTS),
            titles=titles,
            others=[e for j, e in enumerate(examples) if j != i] if arguments.hard else (),
            hard_count=max(COUNTS) if arguments.hard else 0,
            seed=arguments.seed,
        )

    return prepare


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def answers_of(folder: Path) -> Iterator[tuple[str, noise.NoiseAnswers]]:
    """Keys and results in the order of the questions."""
    if not (folder / "answers.jsonl").exists():
        raise InputError(f"{folder}: holds no run (answers.jsonl)")
    for row in sorted(iter_results(folder / "answers.jsonl"), key=lambda row: int(row["id"])):
        yield row["id"], noise.NoiseAnswers.from_dict(row["id"], row)


def report(folder: Path, examples: list[Example]) -> None:
    results = dict(answers_of(folder))
    if not results:
        raise SystemExit(f"{folder}: no question answered yet")
    rows = list(iter_results(folder / "answers.jsonl"))
    settings = rows[0]["settings"]
    started = time.perf_counter()
    summary = noise.summarise(results.values(), primary=settings["primary"])
    given, computed = sum(r["given"] for r in rows), sum(r["computed"] for r in rows)
    measures = retrieval_measures([examples[int(key)] for key in results])
    found = {
        "settings": settings,
        **summary.to_dict(),
        "published": published(summary),
        "retrieval": {"means": measures.means, "left_out": measures.left_out},
        "given": given,
        "computed": computed,
        "seconds": round(sum(r["seconds"] for r in rows), 1),
    }
    text = [f"# The Power of Noise: {settings['reader']['name']}", noise.markdown(summary).rstrip(), agreement(summary)]
    text.append(
        f"Tokens given {given:,}, computed {computed:,}: {computed / given:.1%}. Answering took "
        f"{found['seconds']:,} s; the reader is {json.dumps(settings['reader'])}, the seed {settings['seed']}, random "
        f"passages are from: {settings['random']}."
    )
    text.append(
        f"Retrieval, over {len(measures.indices)} questions with gold flags: "
        + ", ".join(f"{name} {value:.3f}" for name, value in measures.means.items())
        + "."
    )
    noise.plot_accuracy(summary, folder / "accuracy.svg")
    if (folder / "attention.jsonl").exists() and (section := attention_report(folder, results, found)):
        text.append(section)
    (folder / "report.json").write_text(json.dumps(found, indent=1, allow_nan=False), encoding="utf-8")
    (folder / "report.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print(f"{folder / 'report.md'}: {len(results)} questions, {time.perf_counter() - started:.1f} s")


def published(summary: noise.NoiseSummary) -> dict[str, Any]:
    """Our differences from gold alone beside the paper's for Llama2-7B."""
    ours = {c.name: c.difference for c in summary.comparison.contrasts}
    return {
        f"{others}:{position}": {
            "ours": ours[f"{others}:{position}"].to_dict(),
            "paper": round(accuracy - PUBLISHED_GOLD, 4),
        }
        for others, accuracies in PUBLISHED.items()
        for position, accuracy in zip(("far", "mid", "near"), accuracies, strict=True)
        if accuracy is not None and f"{others}:{position}" in ours
    }


def agreement(summary: noise.NoiseSummary) -> str:
    """Which of our differences have the paper's sign, and which are too small to have one."""
    table = ["| layout | ours | paper | sign |", "| - | - | - | - |"]
    for name, row in published(summary).items():
        ours = "{estimate:+.3f} [{low:+.3f}, {high:+.3f}]".format(**row["ours"])
        table.append(f"| {name} | {ours} | {row['paper']:+.3f} | {sign(row)} |")
    return "Differences from gold alone beside the paper's (Llama2-7B, 10,000 questions).\n\n" + "\n".join(table)


def sign(row: dict[str, Any]) -> str:
    ours = row["ours"]
    if ours["low"] <= 0 <= ours["high"]:
        return "not told from 0"
    return "same" if (ours["estimate"] > 0) == (row["paper"] > 0) else "opposite"


def attention_report(folder: Path, results: dict[str, noise.NoiseAnswers], found: dict[str, Any]) -> str:
    rows = list(iter_results(folder / "attention.jsonl"))
    taken = [{name: noise.AnswerAttention.from_dict(row[name]) for name in WATCHED} for row in rows]
    if not taken:
        return ""
    clusters = [results[row["id"]].cluster or row["id"] for row in rows]
    plain, scaled = noise.mean_entropies(taken), noise.mean_entropies(taken, normalised=True)
    header = "| layout | entropy, nats | less gold alone | Wilcoxon p | over log of prompt tokens |"
    table = [header, "| - | - | - | - | - |"]
    for name in WATCHED:
        mean, share = bootstrap(plain[name], clusters=clusters), bootstrap(scaled[name], clusters=clusters)
        more = paired_bootstrap(plain[name], plain["gold"], clusters=clusters)
        p = wilcoxon(plain[name], plain["gold"])
        table.append(f"| {name} | {mean} | {more} | {p:.2g} | {share} |")
        found.setdefault("entropy", {})[name] = {
            "nats": mean.to_dict(),
            "less_gold": more.to_dict(),
            "wilcoxon": p,
            "normalised": share.to_dict(),
        }
    maps = {name: noise.mean_share([row[name] for row in taken]) for name in WATCHED if name != "gold"}
    kinds = {name: taken[0][name].kinds for name in maps}
    noise.plot_heat_map(maps, kinds, folder / "attention.svg")
    noise.plot_entropy({name: [row[name] for row in taken] for name in WATCHED}, folder / "entropy.svg")
    return (
        f"Entropy of the attention of the answers' tokens over the prompt's tokens, mean over heads, layers and "
        f"{len(taken)} questions.\n\n" + "\n".join(table)
    )


if __name__ == "__main__":
    main()
