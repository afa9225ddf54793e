"use strict";
const prompts = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const PHASES = ["route", "draft", "verify", "other"];
const SVG = "http://www.w3.org/2000/svg";
const FATES = { accepted: "accepted", bonus: "added by the verifier", rejected: "rejected", unused: "after the end" };
const hidden = new Set();
let prompt = prompts[0], views = [], current = 0;

function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}
function shape(tag, className, attributes) {
  const node = document.createElementNS(SVG, tag);
  node.setAttribute("class", className);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}
function token(text, fate) {
  const node = element("li", "token " + fate);
  const lead = text.length - text.trimStart().length;
  node.append(element("i", "", text.slice(0, lead).replaceAll(" ", "\u00b7").replaceAll("\n", "\u21b5")));
  node.append(text.slice(lead).replaceAll("\n", "\u21b5") || (lead ? "" : "\u2026"));
  node.title = FATES[fate];
  return node;
}
const swatch = (fate, text) => element("li", "", element("span", "swatch " + fate), text);
const ms = (seconds) => (1000 * seconds).toFixed(seconds < 0.01 ? 2 : 1) + " ms";

function showPrompt(index) {
  prompt = prompts[index];
  const several = prompt.answers.length > 1;
  const same = prompt.answers.every((trace) => trace.answer === prompt.answers[0].answer);
  $("prompt").textContent = prompt.prompt;
  $("answer").textContent = same ? prompt.answers[0].answer : "";
  $("views").className = several ? "views many" : "views";
  views = prompt.answers.map((trace, i) => makeView(trace, i, several));
  $("views").replaceChildren(...views.map((view) => view.root));
  // A single answer has its figures above the slider, and its bars below it.
  $("facts").replaceChildren(...(several ? [] : [views[0].part("facts")]));
  document.querySelectorAll("#player .history, #player .legend").forEach((node) => node.remove());
  if (several) {
    const key = element("ul", "legend");
    key.append(...["accepted", "bonus", "rejected"].map((fate) => swatch(fate, FATES[fate])));
    $("player").append(key);
  } else {
    $("player").append(views[0].part("history"));
    views[0].root.querySelector("header").remove();
  }
  showToggles(several);
  $("player").hidden = !last();
  $("round").max = Math.max(last(), 1);
  showRound(0);
}

const last = () => Math.max(...views.map((view) => view.trace.rounds.length));

function showToggles(several) {
  $("toggles").hidden = !several;
  $("toggles").replaceChildren(...(several ? views : []).map((view) => {
    const button = element("button", "", view.trace.decoder);
    const mark = () => {
      view.root.hidden = hidden.has(view.trace.decoder);
      button.setAttribute("aria-pressed", !view.root.hidden);
    };
    button.type = "button";
    button.onclick = () => {
      if (!hidden.delete(view.trace.decoder)) hidden.add(view.trace.decoder);
      mark();
    };
    mark();
    return button;
  }));
}

function makeView(trace, number, several) {
  const root = $("view").content.firstElementChild.cloneNode(true);
  const parts = {};
  const part = (name) => (parts[name] ??= root.querySelector("." + name));
  const speed = trace.tokens.length / trace.seconds;
  const facts = [
    [several ? "AccLen" : "Accepted per round", trace.acclen.toFixed(2) + " of " + trace.block],
    ["Rounds", trace.rounds.length],
    ["Tokens", trace.tokens.length],
    ["Speed", speed.toFixed(speed < 10 ? 1 : 0) + " tokens/s"],
    ["Prefill", ms(trace.prefill)],
  ];
  if (several) facts.splice(2, 3, ["", speed.toFixed(speed < 10 ? 1 : 0) + " tokens/s"]);
  if (trace.speedup) facts.push(["Against autoregressive", trace.speedup.toFixed(2) + "\u00d7"]);
  part("name").textContent = trace.decoder;
  part("facts").replaceChildren(...facts.map(([name, value]) =>
    element("div", "", ...(name ? [element("dt", "", name)] : []), element("dd", "", String(value)))));
  part("history").replaceChildren(...trace.rounds.map((round, i) => {
    const bar = element("button", "");
    bar.type = "button";
    bar.tabIndex = -1;
    bar.style.setProperty("--h", round.accepted / trace.block);
    bar.title = `Round ${i + 1}: ${round.accepted} accepted`;
    bar.setAttribute("aria-label", bar.title);
    bar.onclick = () => showRound(i);
    return bar;
  }));
  if (trace.images.length > 1) part("images").classList.add("several");
  part("images").replaceChildren(...trace.images.map((image, i) => {
    const picture = element("img", Math.max(image.width, image.height) <= 320 ? "small" : "");
    picture.src = prompt.pictures[image.picture];
    picture.alt = image.name || "Image " + (i + 1);
    const svg = shape("svg", "", { viewBox: `0 0 ${image.columns} ${image.rows}`, preserveAspectRatio: "none" });
    const figure = element("figure", "", picture, svg);
    if (image.name) figure.append(element("figcaption", "", image.name));
    return figure;
  }));
  return { trace, number, root, part };
}

function showRound(index) {
  current = Math.min(Math.max(index, 0), Math.max(last() - 1, 0));
  $("round").value = current + 1;
  $("position").textContent = `Round ${current + 1} of ${last()}`;
  $("back").disabled = current === 0;
  $("next").disabled = current >= last() - 1;
  views.forEach(showView);
}

function showView(view) {
  const { trace, part } = view;
  const round = trace.rounds[current], final = trace.rounds[trace.rounds.length - 1];
  [...part("history").children].forEach((bar, i) => bar.setAttribute("aria-current", i === current));
  view.root.classList.toggle("done", !round);
  if (final) showRoute(view, round || final);
  else {
    part("routed").textContent = "Image";
    part("under").hidden = true;
  }
  if (!round) return showEnd(view);
  showDraft(view, round);
  showText(view, round);
  showTimes(view, round);
}

function showEnd({ trace, part }) {
  const count = trace.rounds.length;
  const text = count ? `Done after ${count} round${count > 1 ? "s" : ""}.` : "The answer was decided without a draft.";
  part("draft").replaceChildren(element("li", "none", text));
  part("text").textContent = trace.tokens.join("");
  for (const name of ["fates", "bar", "phases"]) part(name).replaceChildren();
  part("total").textContent = count ? "" : "No rounds";
}

function showRoute({ trace, part, number }, round) {
  const pooled = round.pooled !== null;
  const count = round.cells.length;
  const all = trace.images.reduce((sum, image) => sum + image.tokens, 0);
  part("routed").textContent = count + (pooled ? 1 : 0) ? `Visual tokens routed for this round: ${count} of ${all}` : "No visual token routed";
  part("under").hidden = !(count || pooled);
  part("badge").textContent = pooled ? "global token: routed" : "global token: not routed";
  part("badge").classList.toggle("on", pooled);
  trace.images.forEach((image, i) => {
    const svg = part("images").children[i].querySelector("svg");
    const cells = round.cells.filter((cell) => cell.image === i);
    const whole = cells.length >= image.tokens;
    // A mask, because cells of a coarse and a fine grid may overlap.
    const area = { x: 0, y: 0, width: image.columns, height: image.rows };
    const mask = shape("mask", "", { id: `holes-${number}-${i}`, maskUnits: "userSpaceOnUse", ...area });
    mask.append(shape("rect", "", { fill: "white", ...area }), ...cells.map((c) =>
      shape("rect", "", { fill: "black", x: c.column, y: c.row, width: c.width, height: c.height })));
    const veil = shape("rect", "veil", { mask: `url(#holes-${number}-${i})`, ...area });
    const outlines = cells.sort((a, b) => a.strength - b.strength).flatMap((c) => {
      const [x, y] = [0.04 * c.width, 0.04 * c.height];
      const box = { x: c.column + x, y: c.row + y, width: c.width - 2 * x, height: c.height - 2 * y, rx: 2 * x };
      const cell = shape("rect", "cell", { ...box, "stroke-width": whole ? 1 : 2 + 2 * c.strength, "stroke-opacity": 0.5 + 0.5 * c.strength,
        "fill-opacity": 0.02 + 0.2 * c.strength });
      const title = document.createElementNS(SVG, "title");
      title.textContent = `${c.name}: score ${c.score.toFixed(2)}`;
      cell.append(title);
      return [cell];
    });
    svg.replaceChildren(...(cells.length && !whole ? [mask, veil] : []), ...outlines);
  });
}

function showDraft({ part }, round) {
  const chips = round.drafted.map((d) => token(d.text, d.fate));
  if (round.bonus !== null) chips.splice(round.accepted, 0, token(round.bonus, "bonus"));
  part("draft").replaceChildren(...chips);
  const counts = { accepted: round.accepted, rejected: 0, unused: 0 };
  round.drafted.forEach((d) => { if (d.fate !== "accepted") counts[d.fate] += 1; });
  const items = [["accepted", `accepted: ${counts.accepted}`], ["bonus", "bonus, by the verifier"], ["rejected", `rejected: ${counts.rejected}`]];
  if (counts.unused) items.push(["unused", `after the end: ${counts.unused}`]);
  part("fates").replaceChildren(...items.map(([fate, text]) => swatch(fate, text)));
}

function showText({ trace, part }, round) {
  const kept = round.start + round.accepted;
  const end = kept + (round.bonus !== null ? 1 : 0);
  const join = (from, to) => trace.tokens.slice(from, to).join("");
  part("text").replaceChildren(join(0, round.start), element("span", "caret"), element("span", "now", join(round.start, kept)),
    element("span", "now bonus", join(kept, end)), element("span", "then", join(end)));
}

function showTimes({ part }, round) {
  const total = PHASES.reduce((sum, phase) => sum + (round.seconds[phase] || 0), 0);
  part("total").textContent = `Time of this round: ${ms(total)}`;
  part("bar").replaceChildren(...PHASES.map((phase) => {
    const piece = element("div", "phase-" + phase);
    piece.style.flex = `${(round.seconds[phase] || 0) / (total || 1)} 0 0`;
    piece.title = phase;
    return piece;
  }));
  part("phases").replaceChildren(...PHASES.map((phase) =>
    element("li", "", element("span", "dot phase-" + phase), phase + " ", element("b", "", ms(round.seconds[phase] || 0)))));
}

$("round").oninput = (event) => showRound(Number(event.target.value) - 1);
$("back").onclick = () => showRound(current - 1);
$("next").onclick = () => showRound(current + 1);
document.addEventListener("keydown", (event) => {
  if (event.target.matches("select, input") || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "ArrowLeft") showRound(current - 1);
  if (event.key === "ArrowRight") showRound(current + 1);
});
if (prompts.length > 1) {
  $("traces").hidden = false;
  $("traces").append(...prompts.map((p, i) => new Option(`${i + 1}. ${p.prompt}`.slice(0, 70), i)));
  $("traces").onchange = (event) => showPrompt(Number(event.target.value));
}
showPrompt(0);
