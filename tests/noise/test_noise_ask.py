"""Running all layouts: prompts, counts and the tokens saved by sharing."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.scripted import ScriptedReader
from noise_cases import FIRST, example, pool

from fastreader import noise
from fastreader.core.tree import PrefixTree
from fastreader.data import Example, Passage
from fastreader.errors import InputError
from fastreader.noise import NoiseAnswers, NoiseTemplate


def materials(**changes) -> noise.Materials:
    return noise.gather(example(**changes), random=noise.DistractorPool(pool()), random_count=8)


def test_the_prompt_has_the_parts_of_the_paper_in_order():
    pieces = NoiseTemplate().pieces(" who owned it? ", [FIRST, Passage("No title, {text} {number}.")])
    assert pieces[1] == "Documents:\n"
    assert pieces[2:4] == [
        "Document [1] (Title: Han Solo) Solo flew the Falcon with Chewbacca.\n",
        "Document [2] No title, {text} {number}.\n",
    ]
    assert pieces[4:] == ["\nQuestion: who owned it?\n"]
    assert NoiseTemplate().options()["lead"] == "Answer:"
    assert "NO-RES" in pieces[0] and "five" in pieces[0]


def test_a_text_with_fields_is_a_format_string():
    template = NoiseTemplate(document="{{{number}}} {title}: {text}", instruction="{NO-RES}")
    pieces = template.pieces("who {x}?", [Passage("{text}", "{title}")])
    assert pieces == ["{NO-RES}", "Documents:\n", "{1} {title}: {text}", "\nQuestion: who {x}?\n"]
    assert NoiseTemplate.from_dict(template.to_dict()) == template
    assert template.digest() == NoiseTemplate.from_dict(template.to_dict()).digest() != NoiseTemplate().digest()


def test_the_closed_book_has_no_documents():
    pieces = NoiseTemplate().pieces("who?", [])
    assert len(pieces) == 2 and "memory" in pieces[0] and "ocument" not in "".join(pieces)


def test_answers_by_rule():
    """The reader copies the last document, which is right if it holds an answer in any spelling."""

    def write(prompt: str, i: int) -> str:
        documents = [line for line in prompt.splitlines() if line.startswith("Document [")]
        return documents[-1].upper() if documents else "no-res."

    reader = ScriptedReader(write)
    both = [materials(), materials(id="q2", answers=["Chewbacca"])]
    results = noise.ask(reader, both, ["closed_book", "distracting:1:near", "distracting:1:far", "relevant:1:far"])
    first, second = results
    assert {name: a.right for name, a in first.answers.items()} == {
        "closed_book": 0.0,
        "distracting:1:near": 1.0,
        "distracting:1:far": 0.0,
        "relevant:1:far": 1.0,
    }
    assert first.answers["closed_book"].no_answer and not first.answers["distracting:1:near"].no_answer
    assert first.answers["distracting:1:far"].kinds == ("gold", "distracting")
    assert second.id == "q2" and second.answers["relevant:1:far"].right == 1.0
    assert len(reader.prompts) == 8 and results.stats.sequences == 8


def test_distraction_is_a_column_of_the_summary(tiny_reader):
    """The largest effect of a layout's passages without the answer, each scored once."""
    given = [materials(), materials(id="q2")]
    names = ["closed_book", "gold", "relevant:1:far", "distracting:1:near", "distracting:2:far", "random:2:near"]
    plain = noise.ask(tiny_reader, given, names, max_new_tokens=2)
    found = noise.ask(tiny_reader, given, names, max_new_tokens=2, distraction=True)
    for item, row, without in zip(given, found, plain, strict=True):
        for name, answer in row.answers.items():
            read = noise.layout(item, name).without_answer
            assert answer == replace(without.answers[name], measures=answer.measures)
            if not read:
                assert answer.measures == {}
                continue
            alone = noise.distracting_effects(tiny_reader, item.question, read)
            assert answer.measures == {"distraction": pytest.approx(alone.max(), abs=1e-6)}
    assert found.stats.sequences - plain.stats.sequences == 2 * 4  # two distracting and two random of each question
    summary = noise.summarise(found, resamples=20)
    values = [row.answers["distracting:1:near"].measures["distraction"] for row in found]
    mean = summary.counts["distracting:1:near"].measures["distraction"]
    assert mean.mean.estimate == pytest.approx(np.mean(values))


def test_all_layouts_go_into_one_generation():
    class Counting(ScriptedReader):
        calls = 0

        def generate(self, prompts, **options):
            self.calls += 1
            self.options = options
            return super().generate(prompts, **options)

    reader = Counting()
    noise.ask(reader, [materials(), materials(id="q2")], noise.oracle_grid(["random"]), max_new_tokens=7, stop=["\n"])
    assert reader.calls == 1
    assert reader.options["max_new_tokens"] == 7 and reader.options["stop"] == ["\n"]
    assert "temperature" not in reader.options  # greedy


def test_every_layout_is_answered_over_long_or_missing():
    reader = ScriptedReader(lambda prompt, i: "Lando Calrissian")
    names = ["closed_book", "gold", "random:8:near", "distracting:4:far"]
    lengths = {}
    for name in names[:3]:
        pieces = NoiseTemplate().pieces(example().question, noise.layout(materials(), name).passages)
        lengths[name] = len("".join(pieces) + "Answer:")
    (result,) = noise.ask(reader, [materials()], names, context=lengths["random:8:near"] + 13, max_new_tokens=15)
    assert list(result.answers) == ["closed_book", "gold"]
    assert result.over_long == {"random:8:near": lengths["random:8:near"]}
    assert result.missing == {"distracting:4:far": "distracting:4:far: needs 4 distracting passages, 'q1' has 2"}
    (result,) = noise.ask(reader, [materials()], names, context=lengths["random:8:near"] + 14, max_new_tokens=15)
    assert list(result.answers) == names[:3] and not result.over_long


def test_fill_fills_the_context_and_not_more():
    reader = ScriptedReader(lambda prompt, i: "x")
    m = noise.gather(example(), random=noise.DistractorPool(pool()), random_count=20)
    pieces = NoiseTemplate().pieces(m.question, noise.layout(m, "random:5:near").passages)
    length = len(reader.prompt(pieces, lead="Answer:"))
    (result,) = noise.ask(reader, [m], ["random:fill:near"], context=length + 14)
    assert len(result.answers["random:fill:near"].kinds) == 6
    (result,) = noise.ask(reader, [m], ["random:fill:near"], context=length + 13)
    assert len(result.answers["random:fill:near"].kinds) == 5


def test_nothing_to_run():
    reader = ScriptedReader()
    results = noise.ask(reader, [materials(passages=[FIRST])], ["gold"])
    assert not reader.prompts and list(results[0].missing) == ["gold"] and results.stats.total_tokens == 0
    assert list(noise.ask(reader, [], ["gold"])) == []


def test_rows_come_back_from_json():
    (result,) = noise.ask(ScriptedReader(lambda p, i: "Lando Calrissian"), [materials()], ["gold", "hard:1:far"])
    row = json.loads(json.dumps(result.to_dict()))
    assert NoiseAnswers.from_dict("q1", row) == result
    with pytest.raises(InputError, match="'q1' is not a row of a noise study"):
        NoiseAnswers.from_dict("q1", {"answers": {}})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: noise.ask(r, [materials()], []), "layouts: expected at least one, got"),
        (lambda r: noise.ask(r, [materials()], ["gold", "golden"]), "layout: expected .* got 'golden'"),
        (
            lambda r: noise.ask(r, [materials()], ["retrieved:1", "retrieved:1+random:0"]),
            r"layouts: expected each layout once, got \['retrieved:1', 'retrieved:1'\]",
        ),
        (lambda r: noise.ask(r, [materials()], ["gold"], max_new_tokens=0), "max_new_tokens"),
        (lambda r: noise.ask_cost(r, [materials()], ["gold"]), "expected prompts of token ids"),
        (lambda r: NoiseTemplate(question="Question?"), r"NoiseTemplate.question: the field \{question\} must appear"),
        (
            lambda r: NoiseTemplate(instruction="Answer."),
            "NoiseTemplate.instruction: expected a text with the reply no_answer, 'NO-RES', got 'Answer.'",
        ),
        (lambda r: NoiseTemplate(document="{text} {answer}"), r"NoiseTemplate.document: unknown fields \['answer'\]"),
        (lambda r: noise.gather(Example("q", [], ["a"])), "passages of 'q': expected at least one"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call(ScriptedReader())


def passage(word: str, i: int) -> Passage:
    """Eighty words, as the passages of the real pool have on average."""
    return Passage(" ".join(f"{word}{i} and {j}" for j in range(27)), f"{word.title()} {i}", f"{word}{i}")


@pytest.mark.parametrize("chat", [True, False])
def test_the_layouts_of_the_study_compute_at_most_55_percent_of_the_tokens(packaged_reader, chat):
    """Passages have one fixed order per kind, so the first N are a prefix of any larger number."""
    gold = Passage(passage("gold", 0).text + " ANSWER", "Gold", "g", is_gold=True)
    retrieved = [passage("retrieved", i) for i in range(9)]
    m = noise.gather(
        Example("where is the answer", [*retrieved[:2], gold, *retrieved[2:]], ["ANSWER"]),
        random=noise.DistractorPool([passage("random", i) for i in range(8)]),
        random_count=8,
    )
    grid = ["closed_book", *noise.oracle_grid(), *noise.realistic_grid([4], [0, 1, 2, 4, 8])]
    template = NoiseTemplate(chat=chat)
    stats = noise.ask_cost(packaged_reader, [m, m], grid, template=template)
    assert stats.sequences == 2 * 29
    assert stats.computed_tokens <= 0.55 * stats.total_tokens
    prompts = [
        packaged_reader.prompt(template.pieces(m.question, noise.layout(m, name).passages), **template.options())
        for name in grid
    ]
    assert stats.total_tokens == 2 * sum(len(p) + 15 for p in prompts)
    trees = packaged_reader.plan([(p, []) for p in prompts])
    assert stats.computed_tokens == 2 * (sum(len(tree) for tree in trees) + 15 * 29)
    assert len(PrefixTree.build([(p, []) for p in prompts])) == sum(len(tree) for tree in trees)
