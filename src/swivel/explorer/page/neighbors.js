// The tab of one word (or of arithmetic on words): its neighbors, and the columns it goes with, a list for each set.
import { getJson } from "./api.js";
import { amount, announce, bar, cosine, h, segments, whole } from "./dom.js";
import { current, go, link, viewOf } from "./state.js";

export const COUNTS = ["10", "20", "50", "100", "200"];
const SIZES = ["1000", "10000", "100000"]; // the most frequent words

/** Draw the tab into `place`; returns what the map should mark: one list of tokens for each set, the word first. */
export async function drawWord(place, sets, signal) {
  const state = current();
  if (!state.q.trim()) {
    place.replaceChildren(welcome(sets));
    return sets.map(() => []);
  }
  const found = await Promise.all(sets.map((set) => ask(set, state, signal).catch((error) => keepRefusal(error))));
  const first = found.find((answer) => !answer.refused);
  const inAll = found.length > 1 ? tokensInAll(found) : new Set();
  const parts = [
    heading(state, first, sets[0]),
    first ? controls(state, sets, first) : null,
    h("div", { class: "columns" }, found.map((answer, number) => list(answer, sets[number], sets.length > 1, inAll))),
  ];
  place.replaceChildren(...parts.filter(Boolean));
  announce(first ? `${rows(first).length} answers for ${state.q}` : `${state.q} is unknown`);
  return found.map((answer) => (answer.refused ? [] : [...answer.terms.map((term) => term.token), ...rows(answer).map((row) => row.token)]));
}

/** Only rows go with columns; the columns of a table do not. */
const hasColumns = (set) => set.columns && viewOf(set).noun !== "column";

/** Ask a set; what goes with arithmetic or a guess is not known, so that is answered with what is near it. */
async function ask(set, state, signal) {
  const listsColumns = state.list === "columns" && hasColumns(set);
  const view = listsColumns ? "" : viewOf(set).key;
  const near = await getJson("nearest", { set: set.number, q: state.q, count: state.n, restrict_vocab: state.restrict_vocab, view, guess: state.guess }, signal);
  if (!listsColumns || near.terms.length !== 1 || isGuess(near.terms[0])) return near;
  const found = await getJson("columns", { set: set.number, q: near.terms[0].token, count: state.n }, signal);
  return { ...found, terms: near.terms };
}

/** A refusal is an answer to show in its place; what was called off is none. */
export function keepRefusal(error) {
  if (error.name === "AbortError") throw error;
  return { refused: error };
}

const rows = (answer) => answer.answers || answer.columns;

function tokensInAll(found) {
  const known = found.filter((answer) => !answer.refused).map((answer) => rows(answer).map((row) => row.token));
  if (known.length < 2) return new Set();
  return new Set(known[0].filter((token) => known.every((tokens) => tokens.includes(token))));
}

function heading(state, answer, set) {
  const { noun } = viewOf(set);
  const facts = answer && answer.terms.length === 1 ? wordFacts(answer.terms[0], noun) : answer ? `arithmetic on ${noun}s` : "";
  return h("div", { class: "heading" }, h("h2", { class: "title" }, answer ? expression(answer.terms) : state.q), h("p", { class: "faint" }, facts));
}

const isGuess = (term) => term.expected_cosine !== undefined;

/** What is known of a word, as a sentence. */
export function wordFacts(term, noun) {
  if (isGuess(term)) return `unknown; a guess from the spelling, with an expected cosine of ${cosine(term.expected_cosine)}`;
  const place = `rank ${whole(term.rank)} of ${whole(term.of)}`;
  if (term.count === null) return place;
  return noun === "word" ? `seen ${whole(term.count)} times · ${place}` : `${noun} with a sum of ${whole(term.count)} · ${place}`;
}

/** Words with their signs, each one a link. */
export function expression(terms) {
  return terms.map(({ token, sign }, number) => [
    number || sign < 0 ? h("span", { class: "sign" }, sign < 0 ? " − " : " + ") : null,
    terms.length > 1 ? wordLink(token) : token,
  ]);
}

export function wordLink(token) {
  return h("a", { class: "word", title: token, href: link({ tab: "word", q: token, guess: "", at: "" }) }, token);
}

/** A column of a table. */
export function columnLink(token) {
  return h("a", { class: "word", title: token, href: link({ tab: "word", q: token, view: "c", list: "similar", at: "" }) }, token);
}

function controls(state, sets, answer) {
  const single = answer.terms.length === 1 && !isGuess(answer.terms[0]);
  const kinds = [
    { key: "similar", label: "Similar" },
    { key: "columns", label: "Goes with" },
  ];
  const choose = sets.some(hasColumns) && single;
  return h(
    "div",
    { class: "controls" },
    choose ? segments("What to list", "list", kinds, state.list, (key) => go({ list: key })) : h("span"),
    sizePicker(state, sets),
    countPicker(state),
  );
}

/** How many answers. */
export function countPicker(state) {
  const options = COUNTS.map((count) => h("option", { value: count, selected: count === state.n }, count));
  return h("label", { class: "count" }, "Show ", h("select", { onchange: (event) => go({ n: event.target.value }) }, options));
}

/** Of which words the answers are some: the most frequent ones, or all. */
export function sizePicker(state, sets) {
  const { noun } = viewOf(sets[0]);
  const sizes = SIZES.filter((size) => size < Math.max(...sets.map((set) => set.tokens)));
  if (!sizes.length) return null;
  const name = (size) => (size ? `${whole(Number(size))} most frequent ${noun}s` : `all ${noun}s`);
  const options = ["", ...sizes].map((size) => h("option", { value: size, selected: size === state.restrict_vocab }, name(size)));
  return h("label", { class: "count" }, "Among ", h("select", { onchange: (event) => go({ restrict_vocab: event.target.value }) }, options));
}

function list(answer, set, several, inAll) {
  const title = several ? h("h3", { class: "set" }, set.name) : null;
  if (answer.refused) return h("section", { class: "list" }, title, refusal(answer.refused));
  return h("section", { class: "list" }, title, answer.columns ? columnTable(answer, set) : nearTable(answer, set, inAll));
}

/** What is wrong, with spellings that would work, and a guess where there may be one. */
export function refusal(error) {
  const fix = (token) => h("a", { class: "chip", title: token, href: link(correct(error.word, token)) }, token);
  const close = error.close?.length ? [h("p", {}, "Did you mean one of these?"), h("p", { class: "chips" }, error.close.map(fix))] : null;
  const canGuess = error.canGuess && ["word", "map"].includes(current().tab) && current().q.trim() === error.word;
  const guess = canGuess ? h("p", {}, h("a", { class: "guess", href: link({ guess: "1" }) }, "Guess its neighbors from its spelling")) : null;
  return h("div", { class: "refused", role: "alert" }, h("p", {}, error.message), close, guess);
}

/** What to change to have a known spelling in the place of an unknown word, wherever that is. */
function correct(word, token) {
  const state = current();
  const put = (text, separator) => text.split(separator).map((part) => (part === word ? token : part)).join("");
  const changes = { q: state.q.trim() === word ? token : put(state.q, /(\s+|[+-])/), basket: put(state.basket, /(\n)/) };
  for (const name of ["a", "b", "c"]) changes[name] = state[name] === word ? token : state[name];
  const isPut = Object.entries(changes).some(([name, value]) => value !== state[name]);
  return { ...(isPut ? changes : { tab: "word", q: token }), at: "" };
}

export const chip = (token) => h("a", { class: "chip", title: token, href: link({ tab: "word", q: token, guess: "", at: "" }) }, token);

function nearTable(answer, set, inAll) {
  const { noun } = viewOf(set);
  if (!answer.answers.length) return h("p", { class: "faint" }, `No neighbors: this ${noun} never co-occurred with anything.`);
  const body = answer.answers.map((row) =>
    h(
      "tr",
      { class: inAll.has(row.token) ? "shared" : "" },
      h("th", { scope: "row" }, wordLink(row.token), inAll.has(row.token) ? h("span", { class: "hidden" }, " (in both)") : null),
      h("td", { class: "measure" }, bar(row.similarity), h("span", {}, cosine(row.similarity))),
      frequency(row, set),
    ),
  );
  return table(`Nearest ${noun}s`, [noun, "similarity", ...frequencyHeads(set)], body);
}

/** A column's label: a column of a table, or a word and where it stood, such as that of `right 2-10:milk`. */
export function columnLabel({ token, word, place }, set) {
  if (set.is_table) return columnLink(token);
  if (word === null) return h("span", { class: "word", title: token }, token);
  return [wordLink(word), place ? h("small", { class: "faint", title: token }, place) : null];
}

function columnTable(answer, set) {
  const most = Math.max(...answer.columns.map((row) => row.scores[0]), 1e-9);
  const body = answer.columns.map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, columnLabel(row, set)),
      h("td", { class: "measure" }, bar(row.scores[0] / most, "second"), h("span", {}, row.scores[0].toFixed(2))),
      set.has_matrix ? h("td", { class: "number" }, row.counts[0] === null ? "–" : amount(row.counts[0])) : null,
      h("td", { class: "number rank" }, whole(row.rank)),
    ),
  );
  return table("Columns it goes with", ["column", "score (PMI)", ...(set.has_matrix ? ["together"] : []), "rank"], body);
}

const frequencyHeads = (set) => (set.has_counts ? ["count", "rank"] : ["rank"]);

function frequency(row, set) {
  const count = set.has_counts ? h("td", { class: "number" }, row.count === null ? "–" : whole(row.count)) : null;
  return [count, h("td", { class: "number rank" }, whole(row.rank))];
}

/** A table with headers, `measures` of them over bars and the rest over numbers; the caption is for screen readers. */
export function table(caption, heads, body, measures = [1]) {
  const names = heads.map((name, number) => h("th", { scope: "col", class: number && !measures.includes(number) ? "number" : "" }, name));
  return h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, names)), h("tbody", {}, body));
}

/** On a map alone, what is wrong, and what is marked: the word, its nearest, and the way to all of them. */
export function drawCard(place, state, tokens, alerts, { noun }) {
  place.hidden = state.tab !== "map" || !(tokens?.length || alerts.length);
  place.replaceChildren(...alerts);
  if (!tokens?.length) return;
  const onMap = (token) => h("a", { class: "chip", title: token, href: link({ q: token, guess: "", at: "" }) }, token);
  place.append(
    h("h3", {}, state.q),
    h("a", { class: "primary", href: link({ tab: "word" }) }, `Show ${noun}`),
    h("p", { class: "chips" }, tokens.slice(1, 7).map(onMap)),
  );
}

const examplesOf = (set) => (viewOf(set).noun === "column" ? set.column_examples : set.examples);

function welcome(sets) {
  const size = (set) => (set.is_table ? `${whole(set.tokens)} rows, ${whole(set.columns)} columns` : `${whole(set.tokens)} words`);
  const names = sets.map((set) =>
    h("p", {}, h("strong", {}, set.name), h("span", { class: "faint" }, ` ${size(set)}, ${whole(set.dim)} dimensions`)),
  );
  const { noun } = viewOf(sets[0]);
  return h(
    "div",
    { class: "welcome" },
    h("h2", { class: "title" }, "Explore the vectors"),
    names,
    h("p", {}, `Type a ${noun}, or start with one of these:`),
    h("p", { class: "chips" }, examplesOf(sets[0]).map(chip)),
    sets[0].expressions.length ? [h("p", {}, "Words can be added and subtracted:"), h("p", { class: "chips" }, sets[0].expressions.map(chip))] : null,
    h("p", { class: "faint keyboard" }, h("kbd", {}, "/"), " search from anywhere, ", h("kbd", {}, "1"), " to ", h("kbd", {}, "4"), " tabs, ", h("kbd", {}, "?"), " all keys"),
  );
}
