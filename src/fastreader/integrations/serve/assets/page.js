"use strict";
(() => {
  const get = (id) => document.getElementById(id);
  const [form, question, passages, pasted, candidates, orders, design, tokens, key] =
    ["form", "question", "passages", "pasted", "candidates", "orders", "design", "tokens", "key"].map(get);
  const attribute = get("attribute");
  const [error, status, results, shown] = ["error", "status", "results-title", "shown"].map(get);

  const EXAMPLE = {
    question: "In which year did the Ashgrove library open to readers?",
    passages: [
      "The town of Ashgrove bought a plot on Mill Street in 1904. The first stone of its library was laid there in 1906.",
      "The Ashgrove library opened its doors to readers in October 1908, two years later than planned.",
      "Most of the building burned down in 1911. The library moved to the town hall and reopened in 1913.",
      "An old guide to the county says that the library at Ashgrove opened in 1906, the year carved above its door.",
    ],
    candidates: "1906\n1908\n1913",
  };
  const EMPTY = { question: "", passages: [], candidates: "" };
  const LONG = 400;

  // An element with text or children; texts are never read as HTML.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "share" || name === "places") element.style.setProperty(`--${name}`, value);
      else element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  const whole = (value) => value.toLocaleString("en");
  const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
  const nats = (value, plus = "") => `${value < 0 ? "−" : plus}${Math.abs(value).toFixed(2)}`;
  // Rounding would write 0.00 and 1.00 for candidates that are neither impossible nor certain.
  const probability = (value) =>
    value > 0 && value < 0.005 ? "<0.01" : value < 1 && value >= 0.995 ? ">0.99" : value.toFixed(2);
  const argmax = (values) => values.indexOf(Math.max(...values));

  let running = null, edited = false;

  // The form

  const items = () => [...passages.children];
  const box = (item) => item.querySelector("textarea");

  function addPassage(text = "") {
    const button = (act, sign) => make("button", { type: "button", "data-act": act }, sign);
    const area = make("textarea", { rows: "2", dir: "auto" });
    area.value = text;
    const buttons = make("span", { class: "buttons" }, button("up", "↑"), button("down", "↓"), button("remove", "×"));
    const item = make("li", { class: "passage" }, make("div", { class: "bar" }, make("label"), buttons), area);
    passages.append(item);
    number();
    return item;
  }

  function number() {
    const all = items();
    all.forEach((item, i) => {
      const label = item.querySelector("label");
      box(item).id = label.htmlFor = `passage-${i + 1}`;
      label.textContent = `Passage ${i + 1}`;
      const off = { up: i === 0, down: i === all.length - 1, remove: all.length === 1 };
      const names = { up: `Move passage ${i + 1} up`, down: `Move passage ${i + 1} down`, remove: `Remove passage ${i + 1}` };
      for (const button of item.querySelectorAll("button")) {
        button.disabled = off[button.dataset.act];
        button.setAttribute("aria-label", names[button.dataset.act]);
      }
    });
  }

  function act(item, name) {
    const place = items().indexOf(item);
    if (name === "remove") {
      item.remove();
      number();
      const next = items()[Math.min(place, items().length - 1)];
      (items().length > 1 ? next.querySelector("[data-act=remove]") : box(next)).focus();
      say(`Passage ${place + 1} removed.`);
      return;
    }
    if (name === "up") item.previousElementSibling.before(item);
    else item.nextElementSibling.after(item);
    number();
    // A disabled button would lose the focus.
    const same = item.querySelector(`[data-act=${name}]`);
    (same.disabled ? item.querySelector(`[data-act=${name === "up" ? "down" : "up"}]`) : same).focus();
    say(`This is now passage ${items().indexOf(item) + 1} of ${items().length}.`);
  }

  function dropEmpty() {
    for (const item of items()) if (!box(item).value.trim() && items().length > 1) item.remove();
    number();
  }

  function addPasted() {
    const texts = pasted.value.split(/\n\s*\n/).map((text) => text.trim()).filter(Boolean);
    texts.forEach((text) => addPassage(text));
    pasted.value = "";
    dropEmpty();
    return texts.length;
  }

  function fill(content) {
    question.value = content.question;
    candidates.value = content.candidates;
    pasted.value = "";
    passages.replaceChildren();
    (content.passages.length ? content.passages : ["", ""]).forEach((text) => addPassage(text));
    unmark();
  }

  function mayReplace() {
    const texts = [question, candidates, pasted, ...items().map(box)].map((area) => area.value.trim()).filter(Boolean);
    const known = [EXAMPLE.question, EXAMPLE.candidates, ...EXAMPLE.passages];
    return texts.every((text) => known.includes(text)) || window.confirm("Replace what you have written?");
  }

  function say(text) {
    status.textContent = text;
  }

  function unmark() {
    error.textContent = "";
    for (const field of form.querySelectorAll("[aria-invalid]")) {
      field.removeAttribute("aria-invalid");
      field.removeAttribute("aria-errormessage");
    }
    for (const copy of form.querySelectorAll(".problem")) copy.remove();
  }

  function fail(message, field) {
    error.textContent = message;
    if (!field) return;
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", "problem");
    // A long form hides its end, so the message is also at the field.
    field.after(make("p", { class: "problem", id: "problem" }, message));
    // Someone who writes on while the reader reads should not lose their place.
    if (!edited) field.focus();
  }

  const designField = () => (orders.value ? orders : design);

  // The field that an error of the server belongs to; the message names one passage by its index.
  function failFrom(status, problem) {
    const message = (problem && problem.message) || `The server answered with status ${status}.`;
    const at = /^passages[.[](\d+)[^:]*/.exec(message);
    if (at && items()[Number(at[1])]) {
      const place = Number(at[1]);
      fail(`Passage ${place + 1}${message.slice(at[0].length)}`, box(items()[place]));
      return;
    }
    const name = (problem && problem.param) || (/^\w+/.exec(message) || [""])[0];
    const fields = {
      question, candidates, max_tokens: tokens, passages: box(items()[0]), permutations: designField(), attribute,
    };
    fail(message, status === 401 || status === 403 ? key : Object.hasOwn(fields, name) ? fields[name] : null);
  }

  // What is sent, or null if the form lacks something.
  function request() {
    addPasted();
    const problem = (message, field) => { fail(message, field); return null; };
    const texts = items().map((item) => box(item).value);
    const answers = [...new Set(candidates.value.split("\n").map((line) => line.trim()).filter(Boolean))];
    if (!question.value.trim()) return problem("Write a question.", question);
    if (!texts[0].trim()) return problem("Write at least one passage.", box(items()[0]));
    if (!designField().value.trim()) return problem("Name a design.", design);
    if (!answers.length && !(tokens.value && tokens.checkValidity())) return problem("The longest answer has 1 to 512 tokens.", tokens);
    if (!/^[\x21-\x7e]*$/.test(key.value.trim())) return problem("An API key has only ASCII characters, without spaces.", key);
    const body = { question: question.value.trim(), passages: texts, permutations: designField().value.trim() };
    if (attribute.checked) body.attribute = true;
    return answers.length ? { ...body, candidates: answers } : { ...body, max_tokens: Number(tokens.value) };
  }

  // Reading

  let ticking = 0;

  function busy(on) {
    get("read").setAttribute("aria-disabled", String(on));
    get("cancel").hidden = get("spinner").hidden = !on;
    get("shortcut").hidden = on;
    get("elapsed").textContent = "";
    shown.setAttribute("aria-busy", String(on));
    clearInterval(ticking);
    if (!on) return;
    const started = Date.now();
    ticking = setInterval(() => { get("elapsed").textContent = `${Math.round((Date.now() - started) / 1000)} s`; }, 1000);
  }

  async function read() {
    if (running) return;
    edited = false;
    unmark();
    const body = request();
    if (!body) { say(""); return; }
    const headers = { "Content-Type": "application/json" };
    if (key.value.trim()) headers.Authorization = `Bearer ${key.value.trim()}`;
    running = new AbortController();
    busy(true);
    say("Reading…");
    const signal = running.signal;
    let response = null, answer = null;
    try {
      response = await fetch("v1/read", { method: "POST", headers, body: JSON.stringify(body), signal });
      answer = await response.json();
    } catch {
      answer = null;
    }
    running = null;
    const cancelHadFocus = document.activeElement === get("cancel");
    busy(false);
    if (cancelHadFocus) get("read").focus();
    if (signal.aborted) { say("Cancelled."); return; }
    say("");
    if (!response) fail("The server cannot be reached.");
    else if (!response.ok) failFrom(response.status, answer && answer.error);
    else if (!shows(answer)) fail("The server's answer cannot be shown.");
    else if (edited) say("The results are ready.");
    else results.focus();
  }

  // The results

  const section = (title, ...children) => make("section", {}, make("h3", {}, title), ...children);
  const note = (text) => make("p", { class: "note" }, text);
  const meter = (share) => make("span", { class: "meter", share, "aria-hidden": "true" });
  const column = (...children) => make("th", { scope: "col" }, ...children);
  const candidate = (answer, k) => make("span", { class: "candidate", dir: "auto" }, answer.candidates[k]);

  function show(answer) {
    const winners = answer.probabilities.filter((row) => row.length).map(argmax);
    const best = answer.consensus.map((_, k) => k).sort((a, b) => answer.consensus[b] - answer.consensus[a]);
    shown.replaceChildren(answerOf(answer, winners, best), heatMap(answer, winners, best), ...attribution(answer), ranking(answer), cost(answer));
  }

  // A gateway may answer for the server, in a form of its own.
  function shows(answer) {
    try {
      show(answer);
      return true;
    } catch (problem) {
      console.error(problem);
      return false;
    }
  }

  function answerOf(answer, winners, best) {
    const asked = make("p", { class: "asked", dir: "auto" }, answer.question);
    const count = answer.orderings.length;
    if (!best.length) return section("Answer", asked, make("p", {}, "The reader wrote no answer under any order."));
    const distinct = new Set(winners).size;
    const verdict = count === 1 ? "Only one order was read, so the effect of the order is unknown."
      : distinct === 1 ? `The order does not change the answer: all ${count} orders give the same one.`
      : `The order changes the answer: over ${count} orders, ${distinct} different candidates win.`;
    const rows = best.map((k) => make("tr", {},
      make("th", { scope: "row" }, candidate(answer, k), " ", answer.proposed ? make("span", { class: "chip" }, "proposed") : null),
      make("td", {}, meter(answer.consensus[k]), probability(answer.consensus[k])),
      make("td", {}, `${winners.filter((winner) => winner === k).length} of ${count}`)));
    return section("Answer", asked,
      make("p", { class: "answer", dir: "auto" }, answer.answer),
      make("p", { class: "verdict" }, verdict),
      note(`The consensus is the mean probability over ${counted(count, "order")}. A candidate wins an order if it is the most probable one there.`
        + (answer.proposed ? " The reader proposed the candidates: it wrote an answer under each order." : "")
        + (best.length === 1 ? " With a single candidate, every probability is 1." : "")),
      make("table", { class: "wins" },
        make("caption", { class: "unseen" }, "Candidates by consensus"),
        make("thead", {}, make("tr", {}, column("candidate"), column("consensus"), column("wins"))),
        make("tbody", {}, ...rows)));
  }

  function heatMap(answer, winners, best) {
    const rows = answer.orderings.map((order, m) => make("tr", {},
      make("th", { scope: "row" }, order.map((passage) => passage + 1).join(" ")),
      ...best.map((k) => {
        const value = answer.probabilities[m][k], first = winners[m] === k;
        return make("td", { class: first ? "cell first" : "cell", share: value },
          probability(value), first ? make("span", { class: "unseen" }, " wins") : null);
      }),
      make("td", {}, nats(answer.question_logprobs[m]))));
    const table = make("table", { class: "heat", places: answer.orderings[0].length },
      make("thead", {}, make("tr", {},
        column("order"),
        ...best.map((k) => column(candidate(answer, k))),
        column("question ", make("small", {}, "nats")))),
      make("tbody", {}, ...rows));
    const scale = make("div", { class: "scale" },
      "0", make("span", { class: "ramp", "aria-hidden": "true" }), "1",
      make("span", { class: "sample" }, "0.00"), "wins the order");
    return section("Orders",
      note((best.length ? "Each row is an order of the passages, with the probability of each candidate. A row sums to 1. " : "Each row is an order of the passages. ")
        + "The last column is the log-probability of the question after the passages."),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Probabilities by order" }, table),
      best.length ? scale : null);
  }

  function passageText({ title, text }) {
    const content = title ? `${title}\n${text}` : text;
    if (content.length <= LONG) return make("p", { dir: "auto" }, content);
    return make("details", { dir: "auto" }, make("summary", {}, `${content.slice(0, LONG / 2)}…`), content);
  }

  function attribution({ attribution: found, passages }) {
    if (!found) return [];
    const errors = found.exact || !found.shapley_error ? null : found.shapley_error;
    const order = found.shapley.map((_, i) => i).sort((a, b) => found.shapley[b] - found.shapley[a]);
    const name = ({ title, text }) => { const full = title || text; return full.length > 60 ? `${full.slice(0, 60)}…` : full; };
    const rows = order.map((i) => make("tr", {},
      make("th", { scope: "row" }, `Passage ${i + 1} `, make("span", { class: "candidate", dir: "auto" }, name(passages[i]))),
      make("td", {}, nats(found.shapley[i], "+"), errors ? ` ± ${errors[i].toFixed(2)}` : null),
      make("td", {}, nats(found.alone[i], "+")),
      make("td", {}, nats(found.left_out[i], "+"))));
    return [section("What the answer rests on",
      note("How much each passage changes the log-probability of the answer, in nats. The share is its Shapley value, "
        + `${found.exact ? "over all subsets of the passages" : "estimated from random orders in which passages are added, ± one standard error"}; `
        + "alone: against no passage; last: against the answer without it."),
      make("p", { class: "asked", dir: "auto" }, found.answer),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Attribution" }, make("table", { class: "shares" },
        make("thead", {}, make("tr", {}, column("passage"), column("share"), column("alone"), column("last"))),
        make("tbody", {}, ...rows))),
      found.note ? note(found.note) : null)];
  }

  function ranking(answer) {
    const rows = answer.results.map((result) => {
      const utility = answer.utilities ? answer.utilities[result.index] : null;
      return make("li", {},
        make("div", { class: "bar" },
          make("b", {}, `Passage ${result.index + 1}`),
          meter(result.relevance_score),
          make("span", {}, `relevance ${result.relevance_score.toFixed(3)}`),
          utility === null ? null : make("span", {}, `utility ${nats(utility, "+")} nats`),
          answer.odd === result.index ? make("span", { class: "chip" }, `contradicts the others, probability ${answer.odd_scores[result.index].toFixed(2)}`) : null),
        passageText(answer.passages[result.index]),
        result.note ? note(result.note) : null);
    });
    return section("Passages by relevance",
      note("Relevance comes from each passage read alone: above 0.5, the passage makes the question more probable."
        + (answer.utilities ? " Utility is the passage's worth in the orders above, whatever its place." : "")),
      make("ol", { class: "ranked" }, ...rows),
      answer.notes.length ? make("ul", { class: "notes" }, ...answer.notes.map((text) => make("li", {}, text))) : null);
  }

  function cost({ usage, seconds }) {
    const share = usage.total_tokens ? usage.computed_tokens / usage.total_tokens : 1;
    const element = section("Cost", meter(share),
      make("p", {}, `${whole(usage.computed_tokens)} of ${counted(usage.total_tokens, "token")} computed: sharing saved ${Math.round(100 * (1 - share))}%. ${seconds.toFixed(2)} seconds.`));
    element.className = "cost";
    return element;
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); read(); });
  form.addEventListener("input", (event) => {
    edited = true;
    if (event.target.hasAttribute("aria-invalid")) unmark();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    read();
  });
  passages.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) act(button.closest("li"), button.dataset.act);
  });
  get("add").addEventListener("click", () => box(addPassage()).focus());
  get("split").addEventListener("click", () => say(`${counted(addPasted(), "passage")} added.`));
  get("example").addEventListener("click", () => {
    if (!mayReplace()) return;
    fill(EXAMPLE);
    say("The example is loaded.");
  });
  get("clear").addEventListener("click", () => {
    if (!mayReplace()) return;
    fill(EMPTY);
    say("");
    question.focus();
  });
  orders.addEventListener("change", () => {
    get("design-field").hidden = orders.value !== "";
    unmark();
  });
  get("cancel").addEventListener("click", () => { if (running) running.abort(); });
  fill(EMPTY);
})();
