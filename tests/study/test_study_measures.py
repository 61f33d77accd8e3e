"""Further measures of a study: by name, in the run's folder and its report, also added later."""

import json

import pytest
import torch
from helpers.scripted import ScriptedReader

from fastreader.data import Example
from fastreader.errors import InputError
from fastreader.report import Report
from fastreader.study import RunFolder, Study, run_study
from fastreader.study.measures.case import Case
from fastreader.study.measures.equivalence import AnswerEquivalence
from fastreader.study.measures.registry import measure
from fastreader.study.registry import check

QUESTIONS = [
    {
        "id": "two",
        "question": "Who wrote and who sang it?",
        "answers": ["Ann and Bob"],
        "qa_pairs": [{"short_answers": ["Ann"]}, {"short_answers": ["Robert", "Bob"]}],
        "ctxs": [
            {"title": "", "text": "Ann wrote it.", "isgold": True},
            {"title": "", "text": "It is blue.", "isgold": False},
            {"title": "", "text": "Bob sang it.", "isgold": True},
        ],
    },
    {"id": "none", "question": "And who heard it?", "answers": [], "ctxs": [{"title": "", "text": "Cid heard it."}]},
]
ANSWERS = {"sure:base": "Ann [1, 2]", "sure:no_retrieval": "Ann and Bob"}
PLAIN = ["rouge_l", "short_answers", "gold_read", "gold_cited", "citation_precision", "citation_recall"]


def write(prompt, i):
    return ANSWERS["sure:base" if "Ann wrote it" in prompt or "Cid heard" in prompt else "sure:no_retrieval"]


class Judge(ScriptedReader):
    """Finds the longer answer better and every pair of answers equivalent, in any order. Counts its calls."""

    name, calls = "judge", 0

    def loglikelihood(self, requests, **options):
        self.calls += 1
        return super().loglikelihood(requests, **options)


def judge_score(context, reply):
    if "Answer 1: " in context:
        first, second = (context.split(f"Answer {n}: ")[1].split("\n")[0] for n in (1, 2))
        return 0.0 if (reply == "1") == (len(first) > len(second)) else -5.0
    return 0.0 if reply == "Yes" else -5.0


def study_of(tmp_path, measures, **more):
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    values = {"data": str(path), "readers": ["scripted"], "methods": list(ANSWERS), "measures": measures, **more}
    return Study.of(values)


def run(study, folder, judge=None, **options):
    readers = {"scripted": ScriptedReader(write), "judge": judge}
    return run_study(study, folder, load=readers.__getitem__, progress=False, **options)


def measures_of(folder):
    """Return the measures by question and method."""
    found = RunFolder(folder).measures()
    return {(row["question_id"], row["method"]): found[row["id"]] for row in RunFolder(folder).rows()}


def test_measures_without_a_model(tmp_path):
    run(study_of(tmp_path, PLAIN), tmp_path / "run")
    found = measures_of(tmp_path / "run")
    values = found["two", "sure:base"]
    assert values == {
        "rouge_l": pytest.approx(2 * 1 / (3 + 3)),  # "ann 1 2" and "ann and bob"
        "short_answers": 0.5,
        "gold_read": 1.0,
        "gold_cited": 0.5,
        "citation_precision": 0.5,
        "citation_recall": 1.0,
    }
    assert found["two", "sure:no_retrieval"]["short_answers"] == 1.0
    assert found["two", "sure:no_retrieval"]["gold_read"] == 0.0
    assert found["two", "sure:no_retrieval"]["citation_precision"] is None
    nothing = found["none", "sure:base"]
    assert [nothing[name] for name in ("rouge_l", "short_answers", "gold_read", "gold_cited")] == [None] * 4


@pytest.mark.parametrize(
    "long",
    [
        {"answer": "Ann, and nobody else"},  # ALCE
        {"annotations": [{"long_answer": "Ann, and nobody else", "knowledge": []}, {"long_answer": "By Cid."}]},  # ASQA
    ],
    ids=["ALCE", "ASQA"],
)
def test_rouge_compares_with_the_long_answers_of_data_that_have_them(tmp_path, long):
    study = study_of(tmp_path, ["rouge_l"])
    rows = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    row = {key: value for key, value in rows[0].items() if key not in ("answers", "ctxs")}
    documents = [{"title": p["title"], "text": p["text"]} for p in rows[0]["ctxs"]]
    (tmp_path / "q.jsonl").write_text(json.dumps(row | long | {"docs": documents}) + "\n")
    run(study, tmp_path / "run")
    assert measures_of(tmp_path / "run")["two", "sure:base"] == {"rouge_l": pytest.approx(2 / (3 + 4))}


@pytest.mark.parametrize(
    ("pairs", "value"),
    [([{"short_answers": "Ann"}, {"short_answers": ["Cid"]}], 0.5), ([{"question": "who?"}], None), (["Ann"], None)],
)
def test_short_answers_may_be_texts_and_may_be_missing(tmp_path, pairs, value):
    study = study_of(tmp_path, ["short_answers"])
    row = json.loads((tmp_path / "q.jsonl").read_text().splitlines()[0]) | {"qa_pairs": pairs}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    run(study, tmp_path / "run")
    assert measures_of(tmp_path / "run")["two", "sure:base"] == {"short_answers": value}


@pytest.mark.parametrize(("metric", "values"), [("words", (0.0, 1.0)), ("rouge_l", (1 / 3, 1.0))])
def test_a_measure_as_the_metric_has_a_contrast(tmp_path, metric, values):
    run(study_of(tmp_path, [], metric=metric, baseline="sure:base"), tmp_path / "run")
    report = Report.of(tmp_path / "run")
    rows = {row["method"]: row for row in report.summary}
    assert [rows[name][metric] for name in ANSWERS] == pytest.approx(values)
    assert rows["sure:no_retrieval"]["difference"] == pytest.approx(values[1] - values[0])
    assert rows["sure:no_retrieval"]["p"] is not None
    assert f"compared by <b>{report.run.metric_name}</b>" in report.html()


def test_measures_by_a_judge_added_to_a_finished_run_and_its_report(tmp_path):
    run(study_of(tmp_path, []), tmp_path / "run")
    assert RunFolder(tmp_path / "run").measures() == {}
    named = ["preferred:judge", "equivalent:reader:judge", "citation_recall:reader:judge"]
    judge = Judge(score=judge_score)
    run(study_of(tmp_path, named), tmp_path / "run", judge, resume=True)
    found = measures_of(tmp_path / "run")
    assert found["two", "sure:base"] == dict(zip(named, (0.5, 1.0, pytest.approx(1.0, abs=0.01)), strict=True))
    assert found["two", "sure:no_retrieval"] == dict(zip(named, (1.0, 1.0, 0.0), strict=True))  # longer; cites nothing
    assert found["none", "sure:base"]["equivalent:reader:judge"] is None
    calls = judge.calls
    run(study_of(tmp_path, named), tmp_path / "run", judge, resume=True)
    assert judge.calls == calls  # every answer is measured once
    report = Report.of(tmp_path / "run")
    rows = {row["method"]: row for row in report.summary}
    assert '<th scope="col">preferred:judge</th>' in report.html()
    assert rows["sure:no_retrieval"]["preferred:judge"] == 1.0 and rows["sure:base"]["preferred:judge"] == 0.5


def test_another_baseline_is_compared_with_anew(tmp_path):
    judge = Judge(score=judge_score)
    run(study_of(tmp_path, ["preferred:judge"]), tmp_path / "run", judge)
    assert measures_of(tmp_path / "run")["two", "sure:no_retrieval"] == {"preferred:judge": 1.0}
    for baseline, wanted in (("sure:no_retrieval", 0.0), ("sure:base", 0.5), ("sure:no_retrieval", 0.0)):
        run(study_of(tmp_path, ["preferred:judge"], baseline=baseline), tmp_path / "run", judge, resume=True)
        assert measures_of(tmp_path / "run")["two", "sure:base"] == {"preferred:judge": wanted}


def test_a_table_of_models_may_be_added_and_not_changed(tmp_path):
    judge = Judge(score=judge_score)
    run(study_of(tmp_path, []), tmp_path / "run", judge)
    more = {"judge": {"model": "server:http://here", "tokenizer": "t"}}
    run(study_of(tmp_path, ["preferred:judge"], models=more), tmp_path / "run", judge, resume=True)
    assert measures_of(tmp_path / "run")["two", "sure:no_retrieval"] == {"preferred:judge": 1.0}
    other = {"judge": {"model": "server:http://there", "tokenizer": "t"}}
    for models in (other, {**more, "scripted": {"model": "another"}}):
        with pytest.raises(InputError, match=r"holds a run of another study: the reader (judge|scripted) was"):
            run(study_of(tmp_path, ["preferred:judge"], models=models), tmp_path / "run", judge, resume=True)


def test_a_judge_that_favours_a_place_decides_nothing(tmp_path):
    judge = Judge(score=lambda context, reply: 0.0 if reply == "1" else -5.0)
    run(study_of(tmp_path, ["preferred:judge"]), tmp_path / "run", judge)
    assert {v["preferred:judge"] for v in measures_of(tmp_path / "run").values()} == {0.5}


@pytest.mark.parametrize(
    "name",
    [
        "rouge",
        "preferred",
        "equivalent:judge",
        "citation_recall:nli:",
        "gold_read:judge",
        "crag",
        "citation_recall:bem:x",
    ],
)
def test_unknown_measures_are_rejected_before_anything_runs(tmp_path, name):
    with pytest.raises(InputError, match="measure: expected one of rouge_l, "):
        check(study_of(tmp_path, [name]))


def test_a_missing_classifier_is_reported_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="nli:no/such/folder: there is no folder"):
        check(study_of(tmp_path, ["equivalent:nli:no/such/folder"]))


def test_a_missing_classifier_of_equivalence_and_wrong_texts_are_reported(tmp_path):
    with pytest.raises(InputError, match="bem:no/such/folder: there is no folder"):
        check(study_of(tmp_path, ["equivalent:bem:no/such/folder"]))
    with pytest.raises(InputError, match=r"judges.grade: JudgeTexts.accuracy: the field \{answer\} must appear"):
        check(study_of(tmp_path, [], judges={"grade": {"accuracy": "{question} {answers}"}}))


REPLIES = {"Bob": ("No", "Incorrect", "Incorrect"), "Anna": ("Yes", "Accurate", "Acceptable"), "ann.": ("Yes", "", "")}


@pytest.mark.parametrize(
    ("name", "values", "asked"),
    [
        ("llm_accuracy:judge", [1, 0, 0, 0, 1, None], {"ann.", "Bob", "I don't know", "Anna"}),
        ("crag:judge", [1, -1, 0, 0, 1, None], {"Bob", "Anna"}),  # the others are exact, or no answer
        ("crag_grades:judge", [1, -1, 0, 0, 0.5, None], {"Bob", "Anna"}),
    ],
)
def test_grades_of_a_judge(name, values, asked):
    shown = set()

    def score(context, reply):
        answer = context.split("Answer to grade: ")[1].split("\n")[0]
        shown.add(answer)
        assert "Question: Who?" in context and "Right answers: Ann; Ann B." in context
        return 0.0 if reply in REPLIES.get(answer, ("No",)) else -5.0

    cases = [
        Case(Example("Who?", [], ["Ann", "Ann B."]), text, {}) for text in ("ann.", "Bob", "I don't know", "", "Anna")
    ]
    cases.append(Case(Example("Who?", []), "Bob", {}))
    assert measure(name, {"judge": ScriptedReader(score=score)}.__getitem__)(cases) == values
    assert shown == asked


def test_a_grade_as_the_metric_with_the_judges_texts_from_a_file(tmp_path):
    (tmp_path / "judge.toml").write_text(
        'accuracy = "{question} {answers}: {answer}. Same?"\nyes = "same"\nno = "other"\n'
    )
    study = Study.of({
        **study_of(tmp_path, []).to_dict(),
        "metric": "llm_accuracy:judge",
        "baseline": "sure:base",
        "judges": {"grade": str(tmp_path / "judge.toml")},
    })  # fmt: skip
    right = "Who wrote and who sang it? Ann and Bob: Ann and Bob. Same?"
    judge = Judge(score=lambda context, reply: 0.0 if reply == ("same" if right in context else "other") else -5.0)
    run(study, tmp_path / "run", judge)
    report = Report.of(tmp_path / "run")
    rows = {row["method"]: row for row in report.summary}
    assert [rows[name]["llm_accuracy:judge"] for name in ANSWERS] == [0.0, 1.0]
    assert rows["sure:no_retrieval"]["difference"] == 1.0
    assert "llm_accuracy:judge" in report.html()


@pytest.mark.parametrize("named", ["equivalent", "other"])
def test_equivalence_by_a_classifier_of_two_classes(tmp_path, named):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "paris", "lyon", "france", "where", "is", "it"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "sep_token": "[SEP]"}
    reads = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, model_input_names=reads, **special)
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    labels = {0: named, 1: "different"}
    config = BertConfig(vocab_size=len(words), initializer_range=2.0, id2label=labels, **sizes)
    config.label2id = {label: i for i, label in labels.items()}
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)

    answers, expected = ("paris", "lyon", "paris france", "france lyon paris"), []
    for answer in answers:  # answer, right answer and question, as BEM reads them
        first = [2, *map(words.index, answer.split()), 3]
        second = [4, 3, *map(words.index, ("where", "is", "it")), 3]
        types = torch.tensor([[0] * len(first) + [1] * len(second)])
        with torch.inference_mode():
            logits = model(torch.tensor([first + second]), token_type_ids=types).logits[0].double()
        expected.append(float(logits.softmax(-1)[0 if named == "equivalent" else 1]))
    found = AnswerEquivalence(tmp_path).probabilities([("where is it", "paris", answer) for answer in answers])
    assert found == pytest.approx(expected, abs=1e-5) and len({round(p, 4) for p in expected}) > 1
    cases = [Case(Example("where is it", [], ["paris"]), answer, {}) for answer in (*answers, " ")]
    values = measure(f"equivalent:bem:{tmp_path}", {}.__getitem__)(cases)
    assert values == [*(float(p >= 0.8) for p in expected), 0.0]
