"""The deployment for Ray Serve: a small ASGI app, whose replicas each load a reader."""

import json
import os
import socket
import sys
import urllib.request

import pytest
from helpers.support import framework

import fastreader as fr
from fastreader.errors import InputError, NotReloadableError

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = framework("ray", "ray")
serve = framework("ray.serve", "ray")

from fastreader.integrations.ray import deployment  # noqa: E402

pytestmark = pytest.mark.timeout(200)
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # replicas cannot import this file


def create_app(reader, greeting="none"):
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/describe")
    def describe() -> dict:
        return {**reader.describe(), "process": os.getpid(), "greeting": greeting}

    @app.get("/logprob")
    def logprob(context: str, text: str) -> float:
        return reader.loglikelihood([(context, text)])[0].logprob

    return app


@pytest.fixture(scope="module")
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    ray.init(
        address="local", num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="warning"
    )
    serve.start(http_options={"host": "127.0.0.1", "port": number})
    yield number
    serve.shutdown()
    ray.shutdown()


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
        return json.load(answer)


def test_an_app_in_two_replicas(port, model):
    reader = fr.Reader.load(model, device="cpu", precision="exact")
    serve.run(deployment(create_app, reader, replicas=2, cpus=0.5, greeting="hello"))
    about = [get(port, "describe") for _ in range(30)]
    assert len({answer["process"] for answer in about} - {os.getpid()}) == 2
    assert {answer["greeting"] for answer in about} == {"hello"}
    assert {answer["precision"] for answer in about} == {"exact"}
    (direct,) = reader.loglikelihood([("Why?", "Because")])
    assert get(port, "logprob?context=Why%3F&text=Because") == pytest.approx(direct.logprob, abs=1e-4)


def test_the_server_in_a_replica(port, model):
    from fastreader.integrations.serve.app import create_app as create_server
    from fastreader.integrations.serve.settings import ServerSettings

    reader = fr.Reader.load(model, device="cpu", precision="exact")
    serve.run(deployment(create_server, reader, cpus=0.5, settings=ServerSettings(max_requests=4)))
    texts = ["The Nile is a river.", "Bread is baked."]
    body = json.dumps({"query": "Which river?", "documents": texts}).encode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/rerank", body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        results = json.load(answer)["results"]
    direct = fr.rerank(reader, "Which river?", texts)
    assert [row["index"] for row in results] == direct.indices
    assert [row["relevance_score"] for row in results] == pytest.approx([r.relevance for r in direct], abs=1e-5)


def test_bad_arguments(tiny_reader, model):
    with pytest.raises(NotReloadableError, match="made from a model object"):
        deployment(create_app, tiny_reader)
    for name, value in {"replicas": 0, "gpus": -1, "cpus": 0, "name": " "}.items():
        with pytest.raises(InputError, match=f"{name}: expected"):
            deployment(create_app, model, **{name: value})
    with pytest.raises(InputError, match="create_app: expected a function"):
        deployment("app", model)
