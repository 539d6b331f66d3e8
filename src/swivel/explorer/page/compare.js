// The tab that compares two words: what they share, what is each one's own, and the columns they go with.
import { getJson } from "./api.js";
import { amount, announce, bar, capital, cosine, h } from "./dom.js";
import { columnLabel, countPicker, keepRefusal, refusal, table, wordFacts, wordLink } from "./neighbors.js";
import { suggestFor } from "./search.js";
import { current, go, link, viewOf } from "./state.js";

/** Draw the tab; returns what the map should mark, a list for each set. */
export async function drawCompare(place, sets, signal) {
  const state = current();
  const form = drawForm(state, sets);
  if (!(state.a && state.b)) {
    place.replaceChildren(form, examples(sets[0]));
    return sets.map(() => []);
  }
  const found = await Promise.all(sets.map((set) => ask(set, state, signal).catch(keepRefusal)));
  place.replaceChildren(form, h("div", { class: "columns" }, found.map((answer, number) => drawSet(answer, sets[number], sets.length > 1))));
  const first = found.find((answer) => !answer.refused);
  announce(first ? `cosine ${cosine(first.similarity)}, ${first.shared.length} shared neighbors` : "no answer");
  return found.map((answer) => (answer.refused ? [] : [state.a, state.b, ...answer.shared.map((row) => row.token)]));
}

/** A few neighbors to begin with; they are rows. */
function examples(set) {
  const { noun } = viewOf(set);
  const pairs = noun === "column" ? [] : set.pairs;
  const chips = pairs.map(([a, b]) => h("a", { class: "chip", href: link({ a, b, at: "" }) }, `${a}, ${b}`));
  if (!chips.length) return h("p", { class: "faint" }, `Type two ${noun}s.`);
  return h("div", { class: "welcome" }, h("p", {}, `Type two ${noun}s, or start with one of these pairs:`), h("p", { class: "chips" }, chips));
}

function ask(set, state, signal) {
  return getJson("compare", { set: set.number, view: viewOf(set).key, a: state.a, b: state.b, count: state.n }, signal);
}

function drawForm(state, sets) {
  const inputs = ["a", "b"].map((name) => h("input", { type: "text", id: `compare-${name}`, value: state[name], spellcheck: "false", autocapitalize: "off", maxlength: "1000" }));
  const submit = () => go({ a: inputs[0].value.trim(), b: inputs[1].value.trim(), at: "" });
  inputs.forEach((input, number) =>
    suggestFor(input, {
      parameters: () => ({ set: 0, view: viewOf(sets[0]).key }),
      choose: () => (inputs.every((each) => each.value.trim()) ? submit() : inputs[1 - number].focus()),
    }),
  );
  const { noun } = viewOf(sets[0]);
  const fields = [`First ${noun}`, `Second ${noun}`].map((text, number) =>
    h("div", { class: "field" }, h("label", { for: `compare-${"ab"[number]}` }, text), inputs[number]),
  );
  const form = h("form", { class: "triple pair", "aria-label": `Two ${noun}s` }, fields, h("button", { class: "primary" }, "Compare"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  return h("div", {}, h("h2", { class: "title" }, "Compare"), form, h("div", { class: "controls" }, h("span"), countPicker(state)));
}

function drawSet(answer, set, several) {
  const title = several ? h("h3", { class: "set" }, set.name) : null;
  if (answer.refused) return h("section", { class: "list" }, title, refusal(answer.refused));
  const [a, b] = answer.words;
  return h("section", { class: "list" }, title, verdict(answer, set), lists(answer, set, a, b), columns(answer, set, a, b));
}

function verdict({ similarity, words: [a, b] }, set) {
  return h(
    "div",
    { class: "verdict" },
    h("p", { class: "equation" }, h("span", { class: "sign" }, "cos("), wordLink(a.token), h("span", { class: "sign" }, ", "), wordLink(b.token), h("span", { class: "sign" }, ") = "), h("strong", {}, cosine(similarity))),
    bar(similarity),
    h("p", { class: "faint" }, `${a.token}: ${wordFacts(a, viewOf(set).noun)}. ${b.token}: ${wordFacts(b, viewOf(set).noun)}.`),
  );
}

function lists({ shared, own, reach }, set, a, b) {
  const { noun } = viewOf(set);
  const none = h("p", { class: "faint" }, `None among the ${reach} nearest neighbors of each ${noun}.`);
  return h(
    "div",
    { class: "thirds" },
    h("section", {}, h("h3", {}, "Near both"), shared.length ? pairTable(noun, shared, a, b) : none),
    h("section", {}, h("h3", {}, `Near ${a.token} only`), ownList(own[0], 0)),
    h("section", {}, h("h3", {}, `Near ${b.token} only`), ownList(own[1], 1)),
  );
}

function pairTable(noun, rows, a, b) {
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, wordLink(row.token)),
      ...row.similarities.map((value, number) => h("td", { class: "measure" }, bar(value, number ? "second" : ""), h("span", {}, cosine(value)))),
    ),
  );
  return table("Near both", [noun, a.token, b.token], body, [1, 2]);
}

function ownList(rows, which) {
  const items = rows.map((row) => h("li", {}, wordLink(row.token), h("span", { class: "faint" }, cosine(row.similarities[which]))));
  return rows.length ? h("ol", { class: "own" }, items) : h("p", { class: "faint" }, "None.");
}

function columns({ columns: found }, set, a, b) {
  if (!found) return null;
  const most = Math.max(...found.flatMap((row) => row.scores), 1e-9);
  const cells = (row, number) => [
    h("td", { class: "measure" }, bar(row.scores[number] / most, number ? "second" : ""), h("span", {}, row.scores[number].toFixed(2).replace("-", "−"))),
    set.has_matrix ? h("td", { class: "number" }, row.counts[number] === null ? "–" : amount(row.counts[number])) : null,
  ];
  const body = found.map((row) => h("tr", {}, h("th", { scope: "row" }, columnLabel(row, set)), cells(row, 0), cells(row, 1)));
  const heads = [a, b].flatMap(({ token }) => (set.has_matrix ? [token, "together"] : [token]));
  return h("section", {}, h("h3", {}, "Columns they go with"), h("p", { class: "faint" }, "Estimated PMI, w · c."), table("Columns they go with", ["column", ...heads], body, set.has_matrix ? [1, 3] : [1, 2]));
}
