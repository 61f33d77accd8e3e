"""The libraries that people call servers with: chats, streams and rankings, as the direct calls return them.

OpenAI's own client is in test_server_chat.py.
"""

import pytest
from helpers.serve_support import serving
from helpers.support import byte_tokenizer, framework, tiny_llama

import fastreader as fr
from fastreader import Reader
from fastreader.errors import InputError

QUERY = "Which river is long?"
DOCUMENTS = ["Bread is baked.", "The Nile is a river.", "A long river flows."]
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUERY}]


@pytest.fixture(scope="module")
def reader():
    return Reader.load((tiny_llama(), byte_tokenizer(chat=True)), device="cpu", precision="exact")


@pytest.fixture(scope="module")
def client(reader):
    with serving(reader, names=("tiny",), keys=("a key",)) as client:
        yield client


@pytest.fixture(scope="module")
def answer(reader):
    tokens = reader.tokenizer.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)
    ((text,),) = reader.generate([tokens], max_new_tokens=12)
    return text


@pytest.mark.parametrize("version", [1, 2])
def test_cohere_ranks(client, reader, version):
    cohere = framework("cohere", "clients")
    own = {1: cohere.Client, 2: cohere.ClientV2}[version](api_key="a key", base_url=str(client.base_url))
    found = own.rerank(model="tiny", query=QUERY, documents=DOCUMENTS, top_n=2)
    direct = fr.rerank(reader, QUERY, DOCUMENTS, top_n=2)
    assert [row.index for row in found.results] == direct.indices
    scores = [row.relevance_score for row in found.results]
    assert scores == pytest.approx([result.relevance for result in direct], abs=1e-6)
    if version == 2:
        cut = own.rerank(model="tiny", query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=4)
        short = fr.rerank(reader, QUERY, [text[:4] for text in DOCUMENTS])  # a token is a byte
        assert [row.index for row in cut.results] == short.indices
    with pytest.raises(cohere.core.ApiError, match="method"):
        own.rerank(model="tiny", query=QUERY, documents=DOCUMENTS, request_options=_more(method="magic"))


def _more(**fields):
    return {"additional_body_parameters": fields}


def test_litellm_chats_streams_and_ranks(client, reader, answer, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no network
    litellm = framework("litellm", "clients")
    settings = {"api_base": f"{client.base_url}/v1", "api_key": "a key"}
    ask = {"model": "openai/tiny", "messages": TALK, "max_tokens": 12, "temperature": 0, **settings}
    assert litellm.completion(**ask).choices[0].message.content == answer.text
    chunks = list(litellm.completion(**ask, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.text
    assert len(chunks) > 4
    plain = litellm.text_completion(
        model="text-completion-openai/tiny", prompt="The Nile", max_tokens=5, temperature=0, **settings
    )
    assert plain.choices[0].text == reader.generate(["The Nile"], max_new_tokens=5)[0][0].text
    ranked = litellm.rerank(
        model="cohere/tiny",
        query=QUERY,
        documents=DOCUMENTS,
        top_n=2,
        api_base=f"{client.base_url}/v2/rerank",
        api_key="a key",
    )
    assert [row["index"] for row in ranked.results] == fr.rerank(reader, QUERY, DOCUMENTS, top_n=2).indices
    with pytest.raises(litellm.exceptions.BadRequestError, match="tools"):
        litellm.completion(**ask, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])


def test_langchain_chats_and_streams(client, answer):
    chat_openai = framework("langchain_openai", "clients").ChatOpenAI
    chat = chat_openai(
        model="tiny", base_url=f"{client.base_url}/v1", api_key="a key", temperature=0, max_tokens=12, max_retries=0
    )
    talk = [(message["role"], message["content"]) for message in TALK]
    found = chat.invoke(talk)
    assert found.content == answer.text
    assert found.usage_metadata["output_tokens"] == len(answer.token_ids)
    parts = list(chat.stream(talk))
    assert "".join(part.content for part in parts) == answer.text and len(parts) > 4
    scored = chat.bind(logprobs=True, top_logprobs=2).invoke(talk)
    assert len(scored.response_metadata["logprobs"]["content"]) == len(answer.token_ids)
    stopped = chat.invoke(talk, stop=[answer.text[3:6]])
    assert stopped.content == answer.text[: answer.text.index(answer.text[3:6])]
    with pytest.raises(Exception, match="tools: this server does not have"):
        chat.bind_tools([{"type": "function", "function": {"name": "f", "parameters": {}}}]).invoke(talk)


def test_our_reader_over_the_server_keeps_its_numbers(client, reader):
    with fr.ServerReader(str(client.base_url), "tiny", reader.tokenizer, api_key="a key") as remote:
        pairs = [("The Nile", " is long"), ("Bread", " is baked")]
        for got, want in zip(remote.loglikelihood(pairs), reader.loglikelihood(pairs), strict=True):
            assert got.logprob == pytest.approx(want.logprob, abs=1e-5) and got.is_greedy == want.is_greedy
        assert remote.generate(["The Nile"], max_new_tokens=5)[0][0].text
    with pytest.raises(InputError):
        fr.rerank(reader, QUERY, DOCUMENTS, method="magic")
