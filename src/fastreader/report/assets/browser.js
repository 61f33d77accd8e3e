"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 20;
  const get = (id) => document.getElementById(id);
  const [search, method, outcome, list, more, count] = ["search", "method", "outcome", "list", "more", "count"].map(get);
  let found = [], shown = 0;

  // An element with text or children; texts are never read as HTML.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  const score = (row) => (row.right ? row.right[data.metric] : null);
  const isRight = (row) => score(row) !== null && score(row) > 0.5;
  const isWrong = (row) => score(row) !== null && score(row) <= 0.5;
  const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

  for (const question of data.questions) {
    const parts = [question.id, question.question, ...question.answers];
    for (const row of question.rows) parts.push(row.answer || "");
    for (const passage of question.passages) parts.push(passage.title || "", passage.text);
    question.text = parts.join("\n").toLowerCase();
  }
  data.methods.forEach((name, index) => method.append(make("option", { value: String(index) }, name)));

  function matches(question) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.every((word) => question.text.includes(word))) return false;
    const rows = method.value === "" ? question.rows : question.rows.filter((row) => row.m === Number(method.value));
    if (method.value !== "" && !rows.length) return false;
    // A method is compared with the baseline of its own reader.
    const base = (row) => question.rows.find((other) => other.m === data.baselines[row.m]);
    const against = (test, baseTest) => rows.some((row) => { const held = base(row); return test(row) && held !== undefined && held !== row && baseTest(held); });
    switch (outcome.value) {
      case "right": return rows.some(isRight);
      case "wrong": return rows.some(isWrong);
      case "gained": return against(isRight, isWrong);
      case "lost": return against(isWrong, isRight);
      case "differ": return question.rows.some(isRight) && question.rows.some(isWrong);
      case "none": return rows.some((row) => row.answer === null);
      default: return true;
    }
  }

  function passageName(question, index) {
    const passage = question.passages[index];
    if (!passage) return { text: `passage ${index + 1}`, gold: false, title: "" };
    const name = passage.title || `${passage.text.slice(0, 40)}…`;
    const kind = passage.kind ? ` (${passage.kind})` : "";
    return { text: `${index < question.own ? `${index + 1} ` : ""}${name}${kind}`, gold: Boolean(passage.gold), title: passage.text };
  }

  function chips(question, entries) {
    return make("span", {}, ...entries.map((entry) => {
      const { text, gold, title } = passageName(question, entry);
      return make("span", { class: gold ? "chip gold" : "chip", title }, gold ? `★ ${text}` : text);
    }));
  }

  // Known keys of a trace; any other key appears by its name.
  function details(question, trace) {
    const items = [];
    const add = (name, ...content) => items.push(make("dt", {}, name), make("dd", {}, ...content));
    if (trace.order) add("read in order", trace.order.length ? chips(question, trace.order) : "no passages");
    if (trace.utilities) {
      const ranked = trace.utilities.utility.map((value, index) => [value, index]).sort((a, b) => b[0] - a[0]);
      add("utilities", ...ranked.map(([value, index]) => make("div", {}, `${number(value)} nats, P(best) ${number(trace.utilities.p_best[index])}: ${passageName(question, index).text}`)));
    }
    if (trace.attribution) {
      const { shapley, alone } = trace.attribution;
      const ranked = shapley.map((value, index) => [value, index]).sort((a, b) => b[0] - a[0]);
      add("attribution", ...ranked.map(([value, index]) => make("div", {}, `${number(value)} nats, alone ${number(alone[index])}: ${passageName(question, index).text}`)));
    }
    if (trace.candidates) {
      trace.candidates.forEach((candidate, i) => {
        const parts = [];
        if (trace.validity) parts.push(`validity ${number(trace.validity[i], 0)}`);
        if (trace.validity_probability && trace.validity_probability[i] !== null) parts.push(`P(valid) ${number(trace.validity_probability[i])}`);
        if (trace.ranking) parts.push(`ranking ${number(trace.ranking[i], 1)}`);
        if (trace.scores) parts.push(`score ${number(trace.scores[i], 1)}`);
        add(`candidate ${i + 1}`, make("b", {}, candidate), parts.length ? ` · ${parts.join(", ")}` : "",
          trace.summaries && trace.summaries[i] ? make("div", {}, trace.summaries[i]) : null);
      });
    }
    if (trace.ensemble) {
      const { predictions, documents, vote } = trace.ensemble;
      Object.keys(predictions).forEach((name, i) => {
        const won = i === vote.winner;
        add(won ? `▸ ${name}` : name, make(won ? "b" : "span", {}, predictions[name] === null ? "failed" : predictions[name] || "(empty)"),
          ` · score ${number(vote.scores[i])}, support ${number(vote.support[i])}`,
          documents[name] && documents[name].length ? make("div", {}, make("small", {}, documents[name].join(" · "))) : null);
      });
      if (vote.abstained) add("abstained", vote.abstained);
    }
    if (trace.notes && trace.notes.length) add("notes", trace.notes.join("; "));
    const known = ["order", "utilities", "attribution", "candidates", "summaries", "validity", "validity_probability", "ranking", "scores", "ensemble", "notes", "pairwise", "rationale"];
    for (const [name, value] of Object.entries(trace)) {
      if (known.includes(name) || value === null || value === "" || (Array.isArray(value) && !value.length)) continue;
      add(name.replaceAll("_", " "), typeof value === "string" ? value : JSON.stringify(value));
    }
    return items.length ? make("dl", {}, ...items) : null;
  }

  function answerOf(question, row) {
    const state = row.answer === null ? "" : isRight(row) ? " is-right" : isWrong(row) ? " is-wrong" : "";
    const marks = row.answer === null || !row.right ? "" : ` · EM ${number(row.right[0], 0)}, F1 ${number(row.right[1])}, contained ${number(row.right[2], 0)}`;
    const tokens = row.tokens ? ` · ${row.tokens[0]} of ${row.tokens[1]} tokens` : "";
    const seed = row.seed === undefined ? "" : ` · seed ${row.seed}`;
    return make("div", { class: `answer${state}` },
      make("h4", {}, `${data.methods[row.m]}${seed}${marks}${tokens}`),
      make("p", {}, row.answer === null ? `${row.failed ? "failed" : "left out"}: ${row.why}` : row.answer || "(empty)"),
      details(question, row.trace || {}));
  }

  function fill(body, question) {
    body.append(make("p", {}, make("span", { class: "tally" }, "Right answers: "), question.answers.join(" | ") || "unknown"));
    const only = method.value === "" ? null : Number(method.value);
    for (const row of question.rows) if (only === null || row.m === only || row.m === data.baselines[only]) body.append(answerOf(question, row));
    body.append(make("details", {}, make("summary", {}, `${question.own} passages, as retrieved`),
      make("ol", { class: "passages" }, ...question.passages.slice(0, question.own).map((p) =>
        make("li", {}, p.gold ? make("span", { class: "chip gold" }, "★ gold") : null, make("b", {}, p.title || ""), ` ${p.text}`)))));
  }

  function entry(question) {
    const tally = make("span", { class: "tally", "aria-label": `${question.rows.filter(isRight).length} of ${question.rows.length} answers right` });
    for (const row of question.rows) {
      const right = isRight(row);
      tally.append(make("span", { class: right ? "ok" : "no", title: data.methods[row.m] }, row.answer === null ? "·" : right ? "✓" : "✗"));
    }
    const body = make("div", { class: "body" });
    const element = make("details", { class: "question" }, make("summary", {}, make("b", {}, question.question), tally), body);
    element.addEventListener("toggle", () => { if (element.open && !body.childElementCount) fill(body, question); });
    return element;
  }

  function extend() {
    const next = found.slice(shown, shown + PAGE);
    list.append(...next.map(entry));
    shown += next.length;
    more.hidden = shown >= found.length;
  }

  function update() {
    found = data.questions.filter(matches);
    shown = 0;
    list.replaceChildren();
    count.textContent = `${found.length} of ${data.questions.length} questions`;
    extend();
  }

  let waiting;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(update, 120); });
  for (const control of [method, outcome]) control.addEventListener("change", update);
  get("filters").addEventListener("submit", (event) => { event.preventDefault(); update(); });
  more.addEventListener("click", extend);
  update();
})();
