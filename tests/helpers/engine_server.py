"""A small server with the interfaces of three engines, over a reader, and with faults on request."""

import json
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Engine:
    """What the server answers from, and what it saw.

    Attributes:
        faults: called with each request's path and body before it is answered; may return (status, body, headers).
        seen: paths and bodies of all requests.
    """

    def __init__(self, reader, kind, name="tiny", max_length=2048):
        self.reader, self.kind, self.name, self.max_length = reader, kind, name, max_length
        self.faults, self.seen, self.key = lambda path, body: None, [], None
        self.waiting = self.most_waiting = 0
        self.lock = threading.Lock()

    def get(self, path):
        if path == "/v1/models":
            return {"data": [{"id": self.name, "max_model_len": self.max_length}]}
        probes = {"vllm": "/version", "sglang": "/get_model_info", "llamacpp": "/props"}
        return {} if probes.get(self.kind) == path else None

    def tokens_of(self, tokens):
        """Log-probability of every token but the first, and a most likely one with its value at each place."""
        pairs = [(tokens[:i], tokens[i : i + 1]) for i in range(1, len(tokens))]
        found = self.reader.loglikelihood(pairs) if pairs else []
        best = [
            (t, r.logprob) if r.is_greedy else (t + 1, r.logprob / 2) for (_, [t]), r in zip(pairs, found, strict=True)
        ]
        return [result.logprob for result in found], best

    def post(self, path, body):
        if path == "/generate":
            tokens, start = body["input_ids"], body["logprob_start_len"]
            whole, best = self.tokens_of(tokens)
            rows = [[None, tokens[0], None], *([value, t, None] for value, t in zip(whole, tokens[1:], strict=True))]
            top = [None, *([[value, token, None]] for token, value in best)]
            told = {"input_token_logprobs": rows[start:], "input_top_logprobs": top[start:], "cached_tokens": 1}
            return {"text": "", "meta_info": told}
        tokens = body["prompt"]
        if body.get("echo") or "prompt_logprobs" in body:
            whole, best = self.tokens_of(tokens)
            if self.kind == "vllm":
                rows = [None]
                for value, token, (top, most) in zip(whole, tokens[1:], best, strict=True):
                    rows.append({str(top): {"logprob": most, "rank": 1}, str(token): {"logprob": value, "rank": 2}})
                return {"choices": [{"text": "", "prompt_logprobs": rows}]}
            given = {
                "token_logprobs": [None, *whole, -1.0],
                "top_logprobs": [None, *({str(token): value} for token, value in best), {}],
            }
            return {"choices": [{"text": "", "logprobs": given}]}
        if "logprob_token_ids" in body:
            labels = body["logprob_token_ids"]
            found = self.reader.loglikelihood([(tokens, [label]) for label in labels])
            (best,) = self.reader.generate([tokens], max_new_tokens=1)[0]
            top = {f"token_id:{label}": one.logprob for label, one in zip(labels, found, strict=True)}
            greedy = best.token_ids or list(self.reader.end_tokens)
            given = {"tokens": [f"token_id:{greedy[0]}"], "token_logprobs": [-1.0], "top_logprobs": [top]}
            return {"choices": [{"text": "", "logprobs": given}]}
        (texts,) = self.reader.generate(
            [tokens],
            max_new_tokens=body["max_tokens"],
            n=body["n"],
            temperature=body["temperature"],
            stop=body.get("stop", ()),
            token_logprobs=True,
        )
        choices = []
        for i, text in enumerate(texts):
            choice = {"index": i, "text": text.text, "logprobs": {"token_logprobs": text.token_logprobs}}
            choice["finish_reason"] = "length" if text.finish_reason == "length" else "stop"
            if self.kind == "vllm":
                choice |= {"token_ids": text.token_ids, "stop_reason": "x" if text.finish_reason == "stop" else None}
            choices.append(choice)
        return {"choices": choices[::-1]}


def in_process(engine):
    """Return an httpx transport that answers from the engine without a network."""
    import httpx

    def answer(request):
        if request.method == "GET":
            found = engine.get(request.url.path)
            return httpx.Response(404 if found is None else 200, json=found or {})
        return httpx.Response(200, json=engine.post(request.url.path, json.loads(request.content)))

    return httpx.MockTransport(answer)


@contextmanager
def running(engine):
    """Run the server. Yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status, body, headers=()):
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            found = engine.get(self.path)
            self.answer(404 if found is None else 200, found or {})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with engine.lock:
                engine.seen.append((self.path, body))
                engine.waiting += 1
                engine.most_waiting = max(engine.waiting, engine.most_waiting)
            try:
                if engine.key and self.headers.get("Authorization") != f"Bearer {engine.key}":
                    self.answer(401, {"error": {"message": "no such key"}})
                    return
                fault = engine.faults(self.path, body)
                if fault == "drop":
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.answer(*(fault or (200, engine.post(self.path, body))))
            finally:
                time.sleep(0.005)
                with engine.lock:
                    engine.waiting -= 1

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
