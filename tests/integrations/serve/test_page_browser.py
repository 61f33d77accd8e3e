"""The page at `/` in a real browser, with a server of canned answers. Skipped without a browser."""

import contextlib
import json
import os
import re
import select
import shutil
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fastreader.integrations.serve.app import page as page_and_policy

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MODEL = "made <up>/reader"
ORDERS = [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]]
HEAT = [[0.2, 0.75, 0.05], [0.3, 0.6, 0.1], [0.004, 0.995, 0.001], [0.6, 0.3, 0.1]]


def lacking(what, required):
    """Skip, or fail if FASTREADER_REQUIRE_BROWSER=1 demands a browser."""
    (pytest.fail if required else pytest.skip)(what)


@pytest.fixture(scope="module")
def browser():
    required = os.environ.get("FASTREADER_REQUIRE_BROWSER") == "1"
    try:
        import playwright.sync_api as api
    except ImportError as error:
        lacking(f"needs playwright: pip install 'fastreader[browser]' ({error})", required)
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        lacking(f"needs a browser: none of {', '.join(BROWSERS)} is on the path", required)
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


def reading(body):
    """What /v1/read could answer: four orders and three candidates, whatever the passages are."""
    passages = [{"text": text} for text in body["passages"]]
    proposed = "candidates" not in body
    candidates = (
        ["1906", "1908", "an answer of the reader, much longer than a year"] if proposed else body["candidates"]
    )
    results = [
        {"index": 1, "relevance_score": 0.71, "value": 0.9},
        {"index": 0, "relevance_score": 0.55, "value": 0.2},
        {"index": 3, "relevance_score": 0.52, "value": 0.1, "note": "truncated by 3 tokens"},
        {"index": 2, "relevance_score": 0.4, "value": -0.4},
    ]
    return {
        "question": body["question"],
        "passages": passages,
        "orderings": ORDERS,
        "candidates": candidates,
        "proposed": proposed,
        "logprobs": np.log(HEAT).tolist(),
        "probabilities": HEAT,
        "consensus": np.mean(HEAT, axis=0).tolist(),
        "answer": candidates[1],
        "question_logprobs": [-21.5, -22.25, -20.0, -23.125],
        "utilities": None if proposed else [0.5, 1.25, -1.0, -0.75],
        "results": [row for row in results if row["index"] < len(passages)],
        "notes": ["no utilities: there is no calibration of reader for 4 passages"] if proposed else [],
        "usage": {"prompt_tokens": 4000, "total_tokens": 4000, "computed_tokens": 1000},
        "seconds": 0.5,
        "attribution": attribution(candidates[1]) if body.get("attribute") else None,
    }


def attribution(answer):
    values = {"shapley": [0.5, 2.25, -0.75, 0.0], "alone": [1.0, 3.0, -0.5, 0.1], "left_out": [0.0, 1.5, -1.0, -0.1]}
    errors = {"shapley_error": [0.1, 0.2, 0.05, 0.0], "exact": False}
    return {"answer": answer, **values, "surrogate": [0.0] * 4, **errors, "note": "2 passages were cut"}


class Canned:
    """A server of the page. `answer` maps a request's body to (status, response), or to None for no response."""

    def __init__(self):
        self.text, self.policy = page_and_policy(MODEL)
        self.reset()

    def reset(self):
        self.answer = lambda body: (200, reading(body))
        self.received = []
        self.keys = []
        self.free = threading.Event()  # a request waits for this
        self.free.set()
        self.gone = threading.Event()  # the browser has closed its connection while a request waited


@pytest.fixture(scope="module")
def server():
    canned = Canned()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def send(self, status, text, kind, **headers):
            content = text.encode()
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            if self.path == "/":
                self.send(200, canned.text, "text/html; charset=utf-8", **{"Content-Security-Policy": canned.policy})
            else:
                self.send(404, "{}", "application/json")

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            canned.keys.append(self.headers["Authorization"])
            canned.received.append((self.path, body))
            while not canned.free.wait(0.05):
                if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                    canned.gone.set()
                    return
            answer = canned.answer(body)
            if answer is None:
                return
            status, content = answer
            text = content if isinstance(content, str) else json.dumps(content)
            self.send(status, text, "application/json")

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    canned.address = f"http://127.0.0.1:{listening.server_port}/"
    yield canned
    canned.free.set()
    listening.shutdown()
    listening.server_close()


@contextlib.contextmanager
def opening(browser, server, width=1400, scheme="light", **options):
    server.reset()
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    opened.said, opened.asked = [], []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.on("request", lambda asked: opened.asked.append(asked.url))
    opened.goto(server.address)
    yield opened
    server.free.set()
    context.close()


@pytest.fixture
def page(browser, server):
    with opening(browser, server) as opened:
        yield opened


@pytest.fixture(params=[(390, "light"), (390, "dark"), (1400, "light"), (1400, "dark")], ids=str)
def view(request, browser, server):
    with opening(browser, server, *request.param) as opened:
        yield opened


def shown(locator, text):
    """Wait for the text, or a pattern in it. A wait for a function would need the page's eval."""
    from playwright.sync_api import expect

    expect(locator).to_contain_text(text)


def focused(page, selector):
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_be_focused()


def tab_to(page, name):
    """Press Tab until the element of this id has the focus."""
    for _ in range(60):
        if page.evaluate("document.activeElement.id") == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{name} is not reached by Tab")


def read_example(page, candidates=None):
    page.locator("#example").click()
    if candidates is not None:
        page.locator("#candidates").fill(candidates)
    page.locator("#read").click()
    focused(page, "#results-title")


def colour(text):
    """Channels in [0, 1] of a computed colour: rgb(98, 177, 230), or color(srgb 0.38 0.69 0.9) of a mixture."""
    numbers = [float(number) for number in re.findall(r"[\d.]+(?:e-?\d+)?", text)][:3]
    return [number if text.startswith("color(srgb") else number / 255 for number in numbers]


def luminance(text):
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in colour(text)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def styles(locator, *names):
    return locator.evaluate("(e, names) => names.map(name => getComputedStyle(e)[name])", names)


def texts(locator):
    return [" ".join(text.split()) for text in locator.all_text_contents()]


def test_opens_without_messages_or_further_requests(view, server):
    assert view.said == []
    assert view.asked == [server.address]
    assert view.title() == f"fastreader: {MODEL}" and MODEL in view.locator("header").inner_text()
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_control_has_a_name(page):
    page.locator("#orders").select_option("")
    names = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea, button')].map(e => "
        "[e.id, (e.ariaLabel || [...(e.labels || [])].map(l => l.textContent).join(' ') || e.textContent).trim()])"
    )
    assert len(names) > 15 and all(name for _, name in names), names
    labels = [name for _, name in names]
    assert "Move passage 2 up" in labels and "Remove passage 1" in labels


def test_the_policy_stops_markup_that_is_not_the_pages_own(page):
    assert "'unsafe" not in page.request.get(page.url).headers["content-security-policy"]
    assert not re.search(r"<[^>]+\s(style|on\w+)=", page.content().split("<body>")[1].split("<script>")[0])
    page.evaluate(
        """() => {
            document.body.insertAdjacentHTML("beforeend", `<img src="x" onerror="document.title = 'owned'">
                <p id="styled" style="position: fixed">x</p>`);
            const script = document.createElement("script");
            script.textContent = "document.title = 'owned'";
            document.body.append(script);
        }"""
    )
    page.wait_for_timeout(200)
    assert page.title() == f"fastreader: {MODEL}"
    assert page.evaluate("getComputedStyle(document.getElementById('styled')).position") == "static"


def test_a_reading_by_keyboard_only(view, server):
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.className") == "skip"
    view.keyboard.press("Enter")
    focused(view, "#content")
    for name, text in [
        ("question", "Who?"),
        ("passage-1", "It was Ann."),
        ("passage-2", "It was Bob.\nOr so."),
        ("candidates", "Ann\n Bob \n\nAnn\nCid"),
    ]:
        tab_to(view, name)
        view.keyboard.type(text)
    tab_to(view, "orders")
    view.keyboard.type("Latin")
    tab_to(view, "key")
    view.keyboard.type("s3cret")
    view.keyboard.press("Control+Enter")
    focused(view, "#results-title")
    expected = {
        "question": "Who?",
        "passages": ["It was Ann.", "It was Bob.\nOr so."],
        "candidates": ["Ann", "Bob", "Cid"],
        "permutations": "latin",
    }
    assert server.received == [("/v1/read", expected)] and server.keys == ["Bearer s3cret"]
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.getAttribute('role')") == "region"
    assert view.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert view.said == [] and all(url.startswith(server.address) for url in view.asked)
    kept = "[localStorage.length, sessionStorage.length, document.cookie, location.search]"
    assert view.evaluate(kept) == [0, 0, "", ""]


def test_enter_in_a_line_reads_and_the_key_is_optional(page, server):
    page.locator("#example").click()
    page.locator("#candidates").fill("")
    page.locator("#orders").select_option("")
    page.locator("#design").fill("random:20")
    page.locator("#tokens").fill("8")
    page.locator("#tokens").press("Enter")
    focused(page, "#results-title")
    body = server.received[0][1]
    assert body["permutations"] == "random:20" and body["max_tokens"] == 8 and "candidates" not in body
    assert server.keys == [None]


def test_shows_what_the_orders_make_of_the_answer(view):
    read_example(view)
    answer, heat = view.locator("#shown section").nth(0), view.locator("table.heat")
    assert answer.locator(".answer").inner_text() == "1908"
    shown(answer, "The order changes the answer: over 4 orders, 2 different candidates win.")
    assert texts(answer.locator("tbody tr")) == ["1908 0.663 of 4", "1906 0.281 of 4", "1913 0.060 of 4"]
    assert texts(heat.locator("thead th")) == ["order", "1908", "1906", "1913", "question nats"]
    assert texts(heat.locator("tbody th")) == ["1 2 3 4", "2 3 4 1", "3 4 1 2", "4 1 2 3"]
    assert texts(heat.locator("tbody tr").nth(0).locator("td")) == ["0.75 wins", "0.20", "0.05", "−21.50"]
    assert texts(heat.locator("tbody tr").nth(2).locator("td")) == [">0.99 wins", "<0.01", "<0.01", "−20.00"]
    assert texts(heat.locator(".first")) == ["0.75 wins", "0.60 wins", ">0.99 wins", "0.60 wins"]
    assert heat.locator("th[scope=row]").count() == 4 and heat.locator("th[scope=col]").count() == 5
    ranked = texts(view.locator(".ranked li"))
    assert [row[:9] for row in ranked] == ["Passage 2", "Passage 1", "Passage 4", "Passage 3"]
    assert "relevance 0.710" in ranked[0] and "utility +1.25 nats" in ranked[0] and "utility −0.75" in ranked[2]
    assert "truncated by 3 tokens" in ranked[2]
    shown(view.locator(".cost"), "1,000 of 4,000 tokens computed: sharing saved 75%. 0.50 seconds.")
    assert view.locator(".chip").count() == 0
    assert view.said == []


def test_shows_what_the_answer_rests_on_if_asked(view, server):
    read_example(view)
    assert view.locator(".shares").count() == 0 and "attribute" not in server.received[0][1]
    view.locator("#attribute").check()
    view.locator("#read").click()
    shown(view.locator("#shown"), "What the answer rests on")
    assert server.received[1][1]["attribute"] is True
    rows = texts(view.locator(".shares tbody tr"))
    assert [row[:9] for row in rows] == ["Passage 2", "Passage 1", "Passage 4", "Passage 3"]
    assert rows[0].endswith("+2.25 ± 0.20+3.00+1.50") and rows[3].endswith("−0.75 ± 0.05−0.50−1.00")
    shown(view.locator("#shown"), "2 passages were cut")
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth") and view.said == []


def test_fits_its_width_and_can_be_read(view):
    read_example(view, "19" * 300 + "\n1908\n1913")
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
    cells = view.locator("table.heat .cell")
    seen = set()
    for share in np.linspace(0, 1, 11):
        cells.nth(1).evaluate("(e, share) => e.style.setProperty('--share', share)", float(share))
        style = styles(cells.nth(1), "color", "backgroundColor")
        assert contrast(*style) >= 4.5, (share, style)
        seen.add(style[1])
    assert len(seen) == 11
    first = view.locator("table.heat .first").first
    weight, width, outline, back = styles(first, "fontWeight", "outlineWidth", "outlineColor", "backgroundColor")
    assert weight == "700" and width == "2px" and contrast(outline, back) >= 3
    paper = view.evaluate("getComputedStyle(document.body).backgroundColor")
    for selector in ("body", ".facts", "nav a", ".hint", ".note", "table.heat thead th", ".ranked .bar span + span"):
        assert contrast(*styles(view.locator(selector).first, "color"), paper) >= 4.5, selector
    for selector in ("#question", ".meter", "#add"):
        assert contrast(*styles(view.locator(selector).first, "borderTopColor"), paper) >= 3, selector
    assert contrast(*styles(view.locator("#read"), "color", "backgroundColor")) >= 4.5
    dark = view.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert (luminance(paper) < 0.1) == dark


def test_a_wide_heat_map_scrolls_by_keyboard_inside_its_region(view, server):
    def wide(body):
        count, many = 12, 20
        heat = np.random.default_rng(0).dirichlet(np.full(many, 0.3), count)
        orders = [np.random.default_rng(i).permutation(4).tolist() for i in range(count)]
        changed = {
            "orderings": orders,
            "candidates": [f"candidate {k}" for k in range(many)],
            "probabilities": heat.tolist(),
            "consensus": heat.mean(axis=0).tolist(),
            "question_logprobs": [-20.0] * count,
        }
        return 200, {**reading(body), **changed}

    server.answer = wide
    read_example(view)
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
    view.keyboard.press("Tab")
    region = view.locator(".scroll")
    assert region.evaluate("e => e === document.activeElement && e.scrollWidth > e.clientWidth")
    header = view.locator("table.heat tbody th").first
    before = header.bounding_box()["x"]
    view.keyboard.press("ArrowRight")
    view.wait_for_timeout(300)
    assert region.evaluate("e => e.scrollLeft") > 0
    assert header.bounding_box()["x"] == pytest.approx(before, abs=1)


def test_proposed_candidates_are_labelled_and_notes_shown(page):
    read_example(page, "")
    assert texts(page.locator(".wins tbody th .chip")) == ["proposed"] * 3
    shown(page.locator("#shown"), "The reader proposed the candidates")
    shown(page.locator(".notes"), "no utilities: there is no calibration of reader for 4 passages")
    assert "utility" not in page.locator(".ranked").inner_text()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"candidates": ["yes"], "probabilities": [[1.0]] * 4, "consensus": [1.0], "answer": "yes"},
            "The order does not change the answer: all 4 orders give the same one.",
        ),
        (
            {"orderings": ORDERS[:1], "probabilities": HEAT[:1], "consensus": HEAT[0], "question_logprobs": [-3.0]},
            "Only one order was read, so the effect of the order is unknown.",
        ),
        (
            {"candidates": [], "probabilities": [[]] * 4, "consensus": [], "answer": None, "proposed": True},
            "The reader wrote no answer under any order.",
        ),
    ],
    ids=["one candidate", "one order", "no candidates"],
)
def test_answers_at_the_edges(page, server, changed, expected):
    server.answer = lambda body: (200, {**reading(body), **changed})
    read_example(page)
    shown(page.locator("#shown section").first, expected)
    rows = page.locator("table.heat tbody tr")
    assert rows.count() == len(changed.get("orderings", ORDERS))
    assert rows.first.locator("td").count() == len(changed.get("candidates", "123")) + 1
    assert page.locator(".ranked li").count() == 4 and page.said == []


def test_texts_are_never_markup(page, server):
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    page.locator("#question").fill(f"Q {evil}")
    page.locator("#passage-1").fill(f"P {evil}")
    page.locator("#passage-2").fill(f"R {evil * 8}")
    page.locator("#candidates").fill(f"A {evil}\nB {evil}\nC {evil}")

    def answer(body):
        full = reading(body)
        results = [{**row, "note": f"N {evil}"} for row in full["results"]]
        return 200, {**full, "results": results, "notes": [f"M {evil}"]}

    server.answer = answer
    page.locator("#read").click()
    focused(page, "#results-title")
    page.wait_for_timeout(200)
    text = page.locator("#shown").text_content()
    assert all(f"{letter} {evil}" in text for letter in "QPRABCNM")
    assert page.locator("#shown img, #shown script").count() == 0
    server.answer = lambda body: (422, {"error": {"message": f"question: {evil}", "param": "question"}})
    page.locator("#read").click()
    shown(page.locator("#error"), evil)
    assert page.locator("main img, main script").count() == 0
    assert page.title() == f"fastreader: {MODEL}" and len(page.asked) == 3


@pytest.mark.parametrize(
    ("status", "message", "param", "field", "shows"),
    [
        (401, "expected one of this server's keys as a bearer token", None, "key", "expected one of this server's"),
        (413, "the body is larger than 8 MiB", None, None, "the body is larger than 8 MiB"),
        (422, "permutations: random: count: expected at most 6", "permutations", "orders", "permutations: random"),
        (422, "candidates.1: String should match pattern", None, "candidates", "candidates.1: String"),
        (422, "passages[2]: expected text, got ''", "passages", "passage-3", "Passage 3: expected text"),
        (422, "passages.1.str: too long", None, "passage-2", "Passage 2: too long"),
        (422, "toString: expected none", "toString", None, "toString: expected none"),
        (429, "64 requests are under way; try again soon", None, None, "64 requests are under way"),
        (504, "the request took more than 60 s", None, None, "the request took more than 60 s"),
    ],
)
def test_an_error_is_shown_and_its_field_marked(page, server, status, message, param, field, shows):
    server.answer = lambda body: (status, {"error": {"message": message, "type": "x", "param": param, "code": status}})
    page.locator("#example").click()
    page.locator("#read").click()
    shown(page.locator("#error[role=alert]"), shows)
    marked = page.locator("[aria-invalid=true]")
    assert marked.evaluate_all("all => all.map(e => e.id)") == ([field] if field else [])
    if field:
        focused(page, f"#{field}")
        shown(page.locator(f"#{marked.get_attribute('aria-errormessage')}"), shows)
    server.answer = lambda body: (200, reading(body))
    page.locator("#read").click()
    focused(page, "#results-title")
    assert page.locator("#error").text_content() == "" and marked.count() == 0 and page.locator(".problem").count() == 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((502, "<h1>Bad gateway</h1>"), "The server answered with status 502."),
        ((200, "<h1>A page</h1>"), "The server's answer cannot be shown."),
        ((200, {"status": "ok"}), "The server's answer cannot be shown."),
        (None, "The server cannot be reached."),
    ],
)
def test_answers_that_are_not_the_servers(page, server, answer, expected):
    server.answer = lambda body: answer
    page.locator("#example").click()
    page.locator("#read").click()
    shown(page.locator("#error"), expected)
    assert page.locator("#cancel").is_hidden() and page.locator("#read").get_attribute("aria-disabled") == "false"


def test_an_incomplete_form_is_not_sent(page, server):
    page.locator("#read").click()
    shown(page.locator("#error"), "Write a question.")
    focused(page, "#question")
    page.keyboard.type("Who?")
    assert page.locator("#error").text_content() == ""
    page.locator("#read").click()
    shown(page.locator("#error"), "Write at least one passage.")
    focused(page, "#passage-1")
    page.keyboard.type("Ann.")
    page.locator("#tokens").fill("0")
    page.locator("#read").click()
    shown(page.locator("#error"), "The longest answer has 1 to 512 tokens.")
    page.locator("#tokens").fill("16")
    page.locator("#key").fill("schlüssel")
    page.locator("#read").click()
    shown(page.locator("#error"), "An API key has only ASCII characters")
    page.locator("#key").fill("")
    page.locator("#orders").select_option("")
    page.locator("#read").click()
    shown(page.locator("#error"), "Name a design.")
    assert server.received == []


def test_cancel_by_keyboard_ends_the_request(page, server):
    server.free.clear()
    page.locator("#example").click()
    page.locator("#read").focus()
    page.keyboard.press("Enter")
    shown(page.locator("#status"), "Reading…")
    page.keyboard.press("Control+Enter")  # nothing is sent twice
    tab_to(page, "cancel")
    page.keyboard.press("Enter")
    shown(page.locator("#status"), "Cancelled.")
    focused(page, "#read")
    assert server.gone.wait(10) and len(server.received) == 1
    assert page.locator("#error").text_content() == "" and page.locator("#cancel").is_hidden()
    server.free.set()
    page.keyboard.press("Enter")
    focused(page, "#results-title")


def test_the_form_stays_usable_while_the_reader_reads(page, server):
    server.free.clear()
    page.locator("#example").click()
    page.locator("#read").click()
    shown(page.locator("#status"), "Reading…")
    assert page.locator("#shown").get_attribute("aria-busy") == "true"
    page.locator("#question").fill("And who wrote it")
    page.locator("#question").press_sequentially("?")
    server.free.set()
    shown(page.locator("#status"), "The results are ready.")
    focused(page, "#question")
    assert page.locator("#question").input_value() == "And who wrote it?"
    shown(page.locator(".asked"), "In which year")


def passages(page):
    return page.locator(".passage textarea").evaluate_all("all => all.map(e => e.value)")


def test_passages_are_added_moved_removed_and_pasted(page, server):
    page.locator("#many summary").click()
    page.locator("#pasted").fill("one\nline two\n\n \n\ntwo\n\n\nthree\n")
    page.locator("#split").click()
    assert passages(page) == ["one\nline two", "two", "three"]  # the empty fields have gone
    shown(page.locator("#status"), "3 passages added.")
    page.locator("#add").click()
    focused(page, "#passage-4")
    page.keyboard.type("four")
    page.get_by_label("Move passage 3 up").focus()
    page.keyboard.press("Enter")
    assert passages(page) == ["one\nline two", "three", "two", "four"]
    assert page.evaluate("document.activeElement.ariaLabel") == "Move passage 2 up"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.ariaLabel") == "Move passage 1 down"  # it cannot go further up
    page.get_by_label("Remove passage 2").focus()
    page.keyboard.press("Enter")
    assert passages(page) == ["three", "two", "four"]
    assert page.evaluate("document.activeElement.ariaLabel") == "Remove passage 2"
    page.get_by_label("Remove passage 1").click()
    page.get_by_label("Remove passage 1").click()
    focused(page, "#passage-1")
    assert passages(page) == ["four"] and page.get_by_label("Remove passage 1").is_disabled()
    page.locator("#pasted").fill("five")  # not added by its button, and read all the same
    page.locator("#add").click()
    page.locator("#question").fill("Which?")
    page.keyboard.press("Control+Enter")
    shown(page.locator("#shown"), "Which?")
    assert server.received[0][1]["passages"] == ["four", "five"]


def test_the_example_replaces_own_texts_only_after_a_question(page):
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.locator("#example").click()
    page.locator("#example").click()
    assert asked == [] and len(passages(page)) == 4
    page.locator("#passage-1").fill("my own")
    page.locator("#example").click()
    page.locator("#clear").click()
    assert asked == ["Replace what you have written?"] * 2 and passages(page)[0] == "my own"


def test_motion_is_reduced_on_request(browser, server):
    for motion, name in (("no-preference", "turn"), ("reduce", "none")):
        with opening(browser, server, reduced_motion=motion) as page:
            server.free.clear()
            page.locator("#example").click()
            page.locator("#read").click()
            shown(page.locator("#status"), "Reading…")
            assert page.locator("#spinner").evaluate("e => getComputedStyle(e).animationName") == name
