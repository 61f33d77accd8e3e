"""Chat templates that run without end or fill memory, and ordinary ones, which are as transformers renders them."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading

import pytest
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.errors import InputError, UnsupportedModelError
from fastreader.reader.prompts import chat_template
from fastreader.reader.prompts.chat_template import render_chat

TALK = [
    {"role": "system", "content": "Be kind.\n"},
    {"role": "user", "content": "Who  was Ada? \U0001f916é <b>"},
    {"role": "assistant", "content": "<think>\nx\n</think>\n\nA mathematician."},
    {"role": "user", "content": "When?", "name": None},
]
LOOP = "{% for m in messages %}"
HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "a loop that fills a list": "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}"
    "{% set ns.x = ns.x + [range(9999)|list] %}{% endfor %}",
    "times": "{{ 'a' * 10**10 }}",
    "folded when compiled": "{{ ('a' * 10**6)|center(10**11) }}",
    "doubling": "{% set ns = namespace(x='aaaa') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "shared lists written out": "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x|tojson }}",
    "recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for a in range(9) recursive %}{{ loop(range(9)) if loop.depth < 60 }}{% endfor %}",
    "filters": "{% for a in range(99999) %}{{ range(99999)|map('string')|sort|join|reverse|list|unique|list|length }}"
    "{% endfor %}",
    "a power": "{{ 7 ** (8 ** (9 ** 9)) }}",
    "a power of a variable": "{% set n = messages|length + 9 %}{{ (n ** (n ** n)) % 7 }}",
    "padding": "{{ '%*d' % (10**9, 3) }}{{ '{:>9999999999}'.format(3) }}",
    "replacing": "{% set x = 'a' * 10**5 %}{{ x.replace('a', x) }}",
    "slices": "{{ [1]|slice(10**12)|list }}",
    "random words": "{{ lipsum(n=10**9) }}",
    "a long text": "{% for a in range(9999) %}{{ 'a' * 9999 }}{% endfor %}",
}


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(chat=True)


# Each takes a second of CPU time until it is ended: one of each kind here, all of them by `make fuzz`.
KINDS = (
    "nested loops",
    "folded when compiled",
    "doubling",
    "shared lists written out",
    "recursion",
    "a power",
    "a long text",
)


@pytest.mark.parametrize(
    "template", [pytest.param(t, id=n, marks=[pytest.mark.fuzz] * (n not in KINDS)) for n, t in HOSTILE.items()]
)
@pytest.mark.long(keep=2)
def test_a_template_without_end_is_our_error(tokenizer, monkeypatch, template):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    monkeypatch.setattr(tokenizer, "name_or_path", "the/folder", raising=False)
    with pytest.raises(UnsupportedModelError, match=r"chat_template of the/folder .*(CPU time|memory|characters)"):
        render_chat(tokenizer, TALK, {}, generation=True)
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0].content }}")  # the next is rendered as ever
    assert render_chat(tokenizer, TALK, {}, generation=True) == "Be kind.\n"


ORDINARY = {
    "namespace": "{% set ns = namespace(found=false, n=0) %}" + LOOP + "{% if m.role == 'user' and not ns.found %}"
    "{% set ns.found = true %}{% endif %}{% set ns.n = ns.n + loop.index0 %}{{ m['content'] | trim }}{% endfor %}"
    "{{ ns.found }}{{ ns.n }}",
    "loop.last": LOOP + "{{ bos_token if loop.first }}{{ m.content }}{{ '' if loop.last else '\n' }}"
    "{{ loop.previtem.role if loop.previtem is defined }}{% endfor %}",
    "tojson": LOOP + "{{ m | tojson }}{{ m | tojson(indent=2) }}{% endfor %}{{ tools | tojson(ensure_ascii=True) }}",
    "reversed, slices and splits": "{% for m in messages[::-1] %}{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% endfor %}{{ messages[1:]|length }}{{ messages|map(attribute='role')|join(', ') }}",
    "raise_exception": LOOP + "{% if m.role == 'system' %}{{ raise_exception('No system role ' ~ m.role) }}{% endif %}"
    "{% endfor %}",
    "strftime_now": "{{ strftime_now('%Y') }}{{ bos_token }}",
    "generation": LOOP + "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "macros and loop controls": "{%- macro show(m, end='|') -%}\n{{ m.role }}: {{ m.content }}{{ end }}\n"
    "{%- endmacro -%}"
    "{% for m in messages %}\n  {% if loop.index0 > 2 %}{% break %}{% endif %}\n{{ show(m) }}\n{% endfor %}",
    "variables": "{{ a }}{{ a[0] is string }}{{ b.c }}{{ enable_thinking is defined and enable_thinking is false }}"
    "{{ add_generation_prompt }}{{ a|string }}{{ missing }}",
    "syntax": "{% for m in messages %}",
    "an unknown filter": "{{ messages|nothing }}",
}
OPTIONS = {"a": (1, "é"), "b": {"c": 1.5, 2: None}, "enable_thinking": False, "tools": [{"name": "f", "x": "<ü>"}]}


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("template", ORDINARY.values(), ids=ORDINARY)
def test_an_ordinary_template_is_as_transformers_renders_it(tokenizer, monkeypatch, template, generation):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    try:
        want = tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=generation, **OPTIONS)
    except Exception as error:
        with pytest.raises(InputError) as found:
            render_chat(tokenizer, TALK, OPTIONS, generation=generation)
        assert str(found.value) == f"{type(error).__name__}: {error}"
    else:
        assert render_chat(tokenizer, TALK, OPTIONS, generation=generation) == want


def test_an_unfinished_message_is_as_transformers_leaves_it(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", LOOP + "<{{ m.content }}>{% endfor %}")
    want = tokenizer.apply_chat_template(TALK, tokenize=False, continue_final_message=True)
    assert render_chat(tokenizer, TALK, {}, generation=False, unfinished=True) == want


def test_a_variable_that_is_no_plain_data_is_refused(tokenizer):
    with pytest.raises(InputError, match="unmarshallable"):
        render_chat(tokenizer, TALK, {"a": object()}, generation=True)


def test_threads_get_their_own_texts(tokenizer):
    found = {}

    def ask(i):
        for _ in range(20):
            found.setdefault(i, set()).add(
                render_chat(tokenizer, [{"role": "user", "content": f"<{i}>"}], {}, generation=True)
            )

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(found[i]) == 1 and f"<{i}>" in found[i].pop() for i in range(8))


def _report(tokenizer, pipe):
    pipe.send((render_chat(tokenizer, TALK[1:2], {}, generation=True), chat_template._RENDERER._worker.pid))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_process_of_its_own(tokenizer):
    want = render_chat(tokenizer, TALK[1:2], {}, generation=True)
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_report, args=(tokenizer, there))
    child.start()
    assert here.poll(60), "the child renders nothing"
    text, pid = here.recv()
    child.join()
    assert (text, pid != chat_template._RENDERER._worker.pid) == (want, True)
    assert render_chat(tokenizer, TALK[1:2], {}, generation=True) == want


@pytest.mark.parametrize("name", ["nested loops", "times"])
def test_a_folder_with_a_hostile_template_is_refused(tmp_path, name):
    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer(chat=True).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(HOSTILE[name])
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": HOSTILE[name]}))
    reader = Reader.load(tmp_path, device="cpu")
    with pytest.raises(UnsupportedModelError, match="chat_template of"):
        reader.prompt(["Who?"], chat=True)
