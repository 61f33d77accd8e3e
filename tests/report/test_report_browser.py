"""The page in a real browser. Skipped without a browser."""

import contextlib
import os
import re
import shutil
import socket

import pytest
from made_up_run import GRID, make_run

from fastreader.report import Report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


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


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    make_run(folder / "run", questions=60)
    page = folder / "report.html"
    page.write_text(Report.of(folder / "run").html(), encoding="utf-8")
    return page


@pytest.fixture(params=[(390, "light"), (390, "dark"), (1400, "light"), (1400, "dark")], ids=str)
def page(request, browser, file):
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened = context.new_page()
    opened.said, opened.asked = [], []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.on("request", lambda asked: opened.asked.append(asked.url))
    opened.goto(file.as_uri())
    yield opened
    context.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The noise study's size: 300 questions, 29 layouts."""
    folder = tmp_path_factory.mktemp("large")
    make_run(folder / "run", questions=300, methods=GRID, passages=20, words=78)
    page = folder / "report.html"
    page.write_text(Report.of(folder / "run").html(), encoding="utf-8")
    return page


def shows(locator, start):
    """Wait until the element's text starts so. "" for any text. A wait for a function would need the page's eval."""
    from playwright.sync_api import expect

    expect(locator).to_have_text(re.compile(rf"^\s*{start}.*\S", re.DOTALL))


def luminance(colour):
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_opens_without_messages_or_requests(page, file):
    assert page.said == []
    assert page.asked == [file.as_uri()]
    assert page.title() == "A made-up run"


def received(server):
    """What was sent to a server. A browser may open a connection ahead of time and send nothing."""
    found = []
    server.settimeout(0.3)
    while True:
        try:
            connection = server.accept()[0]
        except TimeoutError:
            return found
        connection.settimeout(0.3)
        with connection, contextlib.suppress(TimeoutError, ConnectionError):
            if sent := connection.recv(1000):
                found.append(sent)


def test_the_policy_stops_markup_that_is_not_the_pages_own(page):
    """As if a text had come through unescaped: nothing of it runs, and nothing leaves the page."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        page.evaluate(
            """(host) => {
                const holder = document.createElement("div");
                holder.innerHTML = `<img src="${host}/x" onerror="document.title = 'owned'">
                    <p id="styled" style="position: fixed">x</p>
                    <form action="${host}/form"><button id="send">send</button></form>`;
                const script = document.createElement("script");
                script.textContent = "document.title = 'owned'";
                document.body.append(holder, script);
                fetch(`${host}/fetched`).catch(() => null);
            }""",
            f"http://127.0.0.1:{elsewhere.getsockname()[1]}",
        )
        page.wait_for_timeout(300)
        assert page.title() == "A made-up run"
        assert page.evaluate("getComputedStyle(document.getElementById('styled')).position") == "static"
        page.evaluate("document.getElementById('send').click()")
        page.wait_for_timeout(300)
        assert received(elsewhere) == []
    said = " ".join(page.said)
    for directive in ("script-src", "style-src", "img-src", "form-action", "default-src"):  # the last one for fetch
        assert directive in said, said


def test_a_large_study_opens_whole_and_draws_only_visible_questions(browser, large):
    """benchmarks/report_opening.py measures the time."""
    assert large.stat().st_size < 5_000_000
    opened = browser.new_page()
    said = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(large.as_uri())
    assert opened.locator("#count").text_content() == "300 of 300 questions"
    assert said == []
    assert opened.locator("#list details.question").count() == 20
    assert opened.locator("#list .body > *").count() == 0
    assert opened.locator("*").count() < 10_000
    opened.locator("#list details.question > summary").first.click()
    shows(opened.locator("#list details.question .body").first, "")
    text = opened.locator("#list details.question").first.inner_text()
    assert "Elsewhere q0 7 (random)" in text and "★" in text
    opened.locator("#method").select_option(label="noise:random:8:near")
    opened.locator("#outcome").select_option("gained")
    assert 0 < int(opened.locator("#count").text_content().split()[0]) < 300
    opened.close()


def test_fits_its_width_and_can_be_read(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    charts = page.evaluate(
        "[...document.querySelectorAll('#charts .scroll')].map(e => [e.ariaLabel, "
        "0.75 * parseFloat(getComputedStyle(e.firstChild).maxWidth), "
        "e.firstChild.getBoundingClientRect().width, e.scrollWidth <= e.clientWidth])"
    )
    assert len(charts) > 5
    for name, points, pixels, whole in charts:
        assert pixels >= 0.73 * points and (whole or points > 465), name
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for selector in ("body", ".facts", "nav a", "figcaption", "#list .ok", "#list .no", "figure svg text"):
        element = page.locator(selector).first
        of = "fill" if selector.endswith("text") else "color"
        colour = element.evaluate(f"e => getComputedStyle(e).{of}")
        assert contrast(colour, paper) >= 4.5, (selector, colour, paper)
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert (luminance(paper) < 0.1) == dark


def test_search_and_filters(page):
    count, entries = page.locator("#count"), page.locator("#list details.question")
    assert count.text_content() == "60 of 60 questions" and entries.count() == 20
    page.locator("#more").click()
    assert entries.count() == 40
    page.locator("#search").fill("question 17?")
    shows(page.locator("#count"), "1 of")
    assert entries.count() == 1 and "question 17?" in entries.first.text_content()
    page.locator("#search").fill("no such words anywhere")
    shows(page.locator("#count"), "0 of")
    page.locator("#search").fill("")
    shows(page.locator("#count"), "60 of")
    page.locator("#outcome").select_option("none")
    assert count.text_content() == "1 of 60 questions"
    page.locator("#outcome").select_option("right")
    page.locator("#method").select_option(label="moi")
    right = int(count.text_content().split()[0])
    page.locator("#outcome").select_option("wrong")
    assert right + int(count.text_content().split()[0]) == 60
    page.locator("#outcome").select_option("gained")
    assert 0 < int(count.text_content().split()[0]) < right


def test_a_question_shows_how_it_was_answered(page):
    page.locator("#search").fill("owned")
    shows(page.locator("#count"), "1 of")
    question = page.locator("#list details.question")
    assert question.locator(".body").inner_text() == ""
    question.locator("summary").first.click()
    shows(page.locator("#list details.question .body").first, "")
    text = question.inner_text()
    assert text.startswith("<script>document.title")
    for expected in ("read in order", "utilities", "P(best)", "candidate 1", "It is the second.", "▸ R@1", "support"):
        assert expected in text, expected
    assert question.locator(".chip.gold").count() > 3
    assert page.title() == "A made-up run"


def test_keyboard(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    summary = page.locator("#list details.question > summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#list details.question").first.get_attribute("open") is not None
