// The tab of analogies: a is to b as c is to what, with the arithmetic behind each answer.
import { getJson } from "./api.js";
import { announce, bar, cosine, h, segments, whole } from "./dom.js";
import { countPicker, keepRefusal, refusal, sizePicker, table, wordLink } from "./neighbors.js";
import { suggestFor } from "./search.js";
import { current, go, link, viewOf } from "./state.js";

const METHODS = [
  { key: "3cosadd", label: "3CosAdd" },
  { key: "3cosmul", label: "3CosMul" },
];
const EPSILON = 0.001; // what 3CosMul adds below the line

/** Draw the tab; returns what the map should mark, a list for each set. */
export async function drawAnalogy(place, sets, signal) {
  const state = current();
  const form = drawForm(state, sets);
  if (!(state.a && state.b && state.c)) {
    place.replaceChildren(form, examples(sets[0].analogies));
    return sets.map(() => []);
  }
  const found = await Promise.all(sets.map((set) => ask(set, state, signal).catch(keepRefusal)));
  const lists = found.map((answer, number) => list(answer, sets[number], sets.length > 1));
  place.replaceChildren(form, h("div", { class: "columns" }, lists));
  const best = found.find((answer) => !answer.refused)?.answers[0];
  announce(best ? `${state.a} is to ${state.b} as ${state.c} is to ${best.token}` : "no answer");
  return found.map((answer) => (answer.refused ? [] : [answer.answers[0]?.token, state.a, state.b, state.c].filter(Boolean)));
}

/** Analogies to begin with, of words that the vectors have. */
function examples(analogies) {
  if (!analogies.length) return h("p", { class: "faint" }, "Type three words: the answer is to the third what the second is to the first.");
  const chips = analogies.map(([a, b, c]) => h("a", { class: "chip", href: link({ a, b, c, at: "" }) }, `${a} : ${b} = ${c} : ?`));
  return h("div", { class: "welcome" }, h("p", {}, "Type three words, or start with one of these:"), h("p", { class: "chips" }, chips));
}

function ask(set, state, signal) {
  return getJson("analogy", { set: set.number, view: viewOf(set).key, word: [state.a, state.b, state.c], method: state.method, count: state.n, restrict_vocab: state.restrict_vocab }, signal);
}

function drawForm(state, sets) {
  const names = { a: "a", b: "is to", c: "as" };
  const inputs = Object.fromEntries(
    Object.keys(names).map((name) => [name, h("input", { type: "text", id: `analogy-${name}`, value: state[name], spellcheck: "false", autocapitalize: "off", maxlength: "1000" })]),
  );
  const submit = () => go({ ...Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value.trim()])), at: "" });
  const fields = Object.entries(names).map(([name, text]) =>
    h("div", { class: "field" }, h("label", { for: `analogy-${name}` }, name === "a" ? "Word" : text), inputs[name]),
  );
  const order = Object.values(inputs);
  order.forEach((input, number) =>
    suggestFor(input, {
      parameters: () => ({ set: 0, view: viewOf(sets[0]).key }),
      choose: () => (order.every((each) => each.value.trim()) ? submit() : order[(number + 1) % 3].focus()),
    }),
  );
  const form = h("form", { class: "triple", "aria-label": "Analogy" }, fields, h("p", { class: "faint asks" }, "is to … ?"), h("button", { class: "primary" }, "Answer"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  return h("div", {}, h("h2", { class: "title" }, "Analogy"), form, controls(state, sets));
}

const controls = (state, sets) =>
  h(
    "div",
    { class: "controls" },
    segments("Method", "method", METHODS, state.method, (key) => go({ method: key })),
    sizePicker(state, sets),
    countPicker(state),
  );

function list(answer, set, several) {
  const title = several ? h("h3", { class: "set" }, set.name) : null;
  if (answer.refused) return h("section", { class: "list" }, title, refusal(answer.refused));
  const best = answer.answers[0];
  const tree = best ? [equation(answer, best), arithmetic(answer, best)] : h("p", { class: "faint" }, "No answer: these words cancel out.");
  return h("section", { class: "list" }, title, tree, answersTable(answer, set));
}

/** b − a + c ≈ answer. The server lists b, c, then a. */
function equation({ terms: [b, c, a] }, best) {
  return h(
    "p",
    { class: "equation" },
    wordLink(b.token), h("span", { class: "sign" }, " − "), wordLink(a.token), h("span", { class: "sign" }, " + "), wordLink(c.token),
    h("span", { class: "sign" }, " ≈ "), h("strong", {}, wordLink(best.token)),
  );
}

/** The numbers: cosines of the answer with b, a and c, and what is made of them. */
function arithmetic({ method, length, terms: [b, c, a] }, best) {
  const [toB, toC, toA] = best.parts;
  const shifted = (value) => ((value + 1) / 2).toFixed(3);
  const text =
    method === "3cosmul"
      ? `(${shifted(toB)} × ${shifted(toC)}) ÷ (${shifted(toA)} + ${EPSILON}) = ${best.similarity.toFixed(3)}`
      : `(${cosine(toB)} − ${cosine(toA).replace("−", "−\u2009")} + ${cosine(toC)}) ÷ ${length.toFixed(3)} = ${cosine(best.similarity)}`;
  const parts = [[b, toB, "+"], [a, toA, "−"], [c, toC, "+"]].map(([term, value, sign]) =>
    h("li", {}, h("span", { class: "sign" }, sign), h("span", { class: "name" }, `cos(${best.token}, ${term.token})`), bar(Math.abs(value), sign === "−" ? "second" : ""), h("span", { class: "value" }, cosine(value))),
  );
  return h("div", { class: "arithmetic" }, h("ul", {}, parts), h("p", {}, h("code", {}, text)));
}

function answersTable(answer, set) {
  const most = Math.max(...answer.answers.map((row) => row.similarity), 1);
  const body = answer.answers.map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, wordLink(row.token)),
      h("td", { class: "measure" }, bar(row.similarity / most), h("span", {}, cosine(row.similarity))),
      set.has_counts ? h("td", { class: "number" }, whole(row.count)) : null,
      h("td", { class: "number rank" }, whole(row.rank)),
    ),
  );
  const measure = answer.method === "3cosmul" ? "score" : "cosine";
  return table("Answers", ["answer", measure, ...(set.has_counts ? ["count"] : []), "rank"], body);
}
