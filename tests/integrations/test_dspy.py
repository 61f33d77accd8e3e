"""A reader as DSPy's language model: the real library, against Reader.generate."""

import asyncio
import copy
import json
import warnings

import pytest
from helpers.support import framework

from fastreader.errors import InputError

dspy = framework("dspy", "dspy")

from fastreader.integrations.dspy import FastreaderLM, conversation_tokens  # noqa: E402

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Which river? <|end|>"}]


@pytest.fixture(autouse=True)
def strict():
    """DSPy warns of interfaces that its next release removes. Ours must not be among them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(LegacyEngine|BaseLM.forward|complete_legacy).*")
        yield


def lm(reader, **options):
    return FastreaderLM(reader=reader, **{"max_tokens": 12, **options})


def test_a_chat(tiny_reader):
    prompt = tiny_reader.prompt([MESSAGES[1]["content"]], system="Be short.")
    (wanted,) = tiny_reader.generate([prompt], max_new_tokens=12)[0]
    own = lm(tiny_reader)
    assert isinstance(own, dspy.BaseLM)
    request = dspy.lm15.Request(
        model=own.model, system="Be short.", messages=(dspy.lm15.Message.user(MESSAGES[1]["content"]),),
        config=dspy.lm15.Config(max_tokens=12),
    )  # fmt: skip
    response = own(request)
    assert response.message.text == wanted.text and response.usage.input_tokens == len(prompt)
    assert (response.finish_reason, response.usage.output_tokens) == ("length", 12)
    assert asyncio.run(own.acall(MESSAGES[1]["content"])) == own(MESSAGES[1]["content"])


def test_turns_are_one_prompt_in_which_messages_stay_text(tiny_reader):
    turns = [("system", "Be short."), ("user", "A <|end|>"), ("assistant", "B"), ("user", "C")]
    text = tiny_reader.tokenizer.apply_chat_template(
        [{"role": role, "content": content.replace("<|end|>", "@")} for role, content in turns],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    before, after = text.split("@")
    encode = tiny_reader.encoder.piece
    wanted = encode(before, trusted=True) + encode("<|end|>") + encode(after, trusted=True)
    assert conversation_tokens(tiny_reader.encoder, turns) == wanted
    one = conversation_tokens(tiny_reader.encoder, [("system", "Be short."), ("user", "A <|end|>")])
    assert one == tiny_reader.prompt(["A <|end|>"], system="Be short.")
    with pytest.raises(InputError, match="messages: expected at least one"):
        conversation_tokens(tiny_reader.encoder, [])


def test_a_completion(tiny_reader):
    wanted = [g.text for g in tiny_reader.generate(["ab"], max_new_tokens=12)[0]]
    assert lm(tiny_reader, model_type="text")("ab") == wanted
    stop = wanted[0][3]
    assert lm(tiny_reader, model_type="text", stop=[stop])("ab") == [wanted[0].partition(stop)[0]]


def test_texts_of_one_call_are_generated_together(tiny_reader, monkeypatch):
    calls = []
    generate = type(tiny_reader).generate
    monkeypatch.setattr(
        type(tiny_reader), "generate", lambda self, *a, **o: (calls.append(o["n"]), generate(self, *a, **o))[1]
    )
    own = lm(tiny_reader, temperature=1.0, model_type="text", seed=5)
    texts = own("ab", n=3)
    assert len(set(texts)) == 3 and calls == [3]
    wanted = generate(tiny_reader, ["ab"], n=3, temperature=1.0, seed=5, max_new_tokens=12)[0]
    assert texts == [g.text for g in wanted]
    assert own("ab", n=3) != texts, "another call draws others"
    assert asyncio.run(lm(tiny_reader, temperature=1.0, model_type="text", seed=5).acall("ab", n=3)) == texts
    assert own("ab", seed=7) == own("ab", seed=7) != own("ab", seed=8)


def test_logprobs(tiny_reader):
    (wanted,) = tiny_reader.generate(["ab"], max_new_tokens=4, token_logprobs=True)[0]
    (found,) = lm(tiny_reader, model_type="text", max_tokens=4, logprobs=True)("ab")
    assert found["text"] == wanted.text
    assert [token["logprob"] for token in found["logprobs"]["content"]] == pytest.approx(wanted.token_logprobs)


def test_what_a_reader_lacks(tiny_reader):
    own = lm(tiny_reader)
    with pytest.raises(dspy.utils.exceptions.LMUnsupportedFeatureError, match="presence_penalty"):
        own("ab", presence_penalty=0.5)
    with pytest.raises(Exception, match="context"):
        own("ab " * 3000)
    with pytest.raises(InputError, match="model_type: expected 'chat' or 'text'"):
        lm(tiny_reader, model_type="responses")


def test_copies_share_the_reader(tiny_reader):
    own = lm(tiny_reader, temperature=0.5)
    other = own.copy(temperature=1.0, rollout_id=2)
    assert (own.kwargs["temperature"], other.kwargs["temperature"]) == (0.5, 1.0)
    assert other.engine.reader is tiny_reader and copy.deepcopy(own).engine.reader is tiny_reader


def test_a_program_is_saved_and_loaded(tiny_reader, model, tmp_path):
    program = dspy.Predict("question -> answer")
    program.lm = FastreaderLM(str(model), temperature=0.7, max_tokens=9, precision="exact", device="cpu", seed=3)
    program.save(str(tmp_path / "program.json"))
    json.loads((tmp_path / "program.json").read_text())
    again = dspy.Predict("question -> answer")
    again.load(str(tmp_path / "program.json"), allow_unsafe_lm_state=True)
    assert isinstance(again.lm, FastreaderLM)
    assert again.lm.dump_state() == program.lm.dump_state()
    assert (again.lm.kwargs["max_tokens"], again.lm.engine.seed) == (9, 3)
    assert again.lm("ab") == program.lm("ab")


def test_in_a_program(tiny_reader):
    own = lm(tiny_reader, max_tokens=8)
    with dspy.context(lm=own), pytest.raises(dspy.utils.exceptions.AdapterParseError):
        dspy.Predict("question -> answer")(question="Which river?")  # random weights write no fields
    assert own.history and "Which river?" in str(own.history[0]["messages"])
