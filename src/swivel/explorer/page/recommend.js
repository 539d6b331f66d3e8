// The tab of recommendations: the best columns of a table for a row, or for the columns of a new one, with reasons.
import { getJson } from "./api.js";
import { announce, h } from "./dom.js";
import { columnLink, countPicker, keepRefusal, refusal, table } from "./neighbors.js";
import { suggestFor } from "./search.js";
import { current, go, link, viewOf } from "./state.js";

/** Draw the tab; returns what the map should mark, a list for each set. */
export async function drawRecommend(place, sets, signal) {
  const state = current();
  const basket = state.basket ? state.basket.split("\n") : [];
  const form = drawForm(state, sets[0], basket);
  if (!state.q && !basket.length) {
    place.replaceChildren(form, examples(sets[0]));
    return sets.map(() => []);
  }
  const found = await Promise.all(sets.map((set) => (set.is_table ? ask(set, state, basket, signal).catch(keepRefusal) : null)));
  place.replaceChildren(form, ...found.map((answer, number) => answer && list(answer, sets[number], sets.length > 1)).filter(Boolean));
  const first = found.find((answer) => answer && !answer.refused);
  announce(first ? `${first.answers.length} recommendations` : "no answer");
  return found.map((answer, number) => marks(answer, viewOf(sets[number]).noun));
}

/** What the map has of an answer: the row, or the columns. */
function marks(answer, noun) {
  if (!answer || answer.refused) return [];
  const { row, basket, answers } = answer;
  return noun === "column" ? [...basket, ...answers.map(({ token }) => token)] : [row].filter((token) => token !== null);
}

function ask(set, state, basket, signal) {
  const wanted = basket.length ? { column: basket } : { row: state.q };
  return getJson("recommend", { set: set.number, ...wanted, count: state.n }, signal);
}

function drawForm(state, set, basket) {
  const rowInput = field("row", basket.length ? "" : state.q);
  const columnInput = field("column", "");
  const takeRow = (q) => go({ q, basket: "", at: "" });
  const takeColumn = (column) => go({ basket: [...new Set([...basket, column])].join("\n"), at: "" });
  const form = h(
    "form",
    { class: "triple pair", "aria-label": "Recommend" },
    h("div", { class: "field" }, h("label", { for: rowInput.id }, "Row"), rowInput),
    h("div", { class: "field" }, h("label", { for: columnInput.id }, "or some columns"), columnInput),
    h("button", { class: "primary" }, "Recommend"),
  );
  suggestFor(rowInput, { parameters: () => ({ set: 0, view: set.views.find(({ noun }) => noun === "row").key }), choose: takeRow });
  suggestFor(columnInput, { parameters: () => ({ set: 0, view: "c" }), choose: takeColumn });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (columnInput.value.trim()) takeColumn(columnInput.value.trim());
    else if (rowInput.value.trim()) takeRow(rowInput.value.trim());
  });

  const remove = (column) => h("a", { class: "chip", href: link({ basket: basket.filter((each) => each !== column).join("\n") }), "aria-label": `Remove ${column}` }, `${column} ×`);
  const chips = basket.length ? h("p", { class: "chips basket" }, basket.map(remove)) : null;
  return h("div", {}, h("h2", { class: "title" }, "Recommend"), form, chips, h("div", { class: "controls" }, h("span"), countPicker(state)));
}

const field = (name, value) => h("input", { type: "text", id: `recommend-${name}`, value, spellcheck: "false", autocapitalize: "off", maxlength: "1000" });

function examples(set) {
  const rows = set.examples.map((q) => h("a", { class: "chip", href: link({ q, basket: "", at: "" }) }, q));
  const columns = set.column_examples.map((basket) => h("a", { class: "chip", href: link({ basket, at: "" }) }, basket));
  return h(
    "div",
    { class: "welcome" },
    h("p", {}, "Columns for a row, such as one of these:"),
    h("p", { class: "chips" }, rows),
    h("p", {}, "Or for a new row that has some columns:"),
    h("p", { class: "chips" }, columns),
  );
}

function list(answer, set, several) {
  const title = several ? h("h3", { class: "set" }, set.name) : null;
  if (answer.refused) return h("section", { class: "list" }, title, refusal(answer.refused));
  const subject = answer.row === null ? null : h("p", { class: "equation" }, h("a", { class: "word", href: link({ tab: "word", q: answer.row, view: "", at: "" }) }, answer.row));
  const note = answer.excludes_seen ? null : h("p", { class: "faint" }, "The columns that the row has are not known, and not left out: pass the matrix.");
  return h("section", { class: "list" }, title, subject, note, answersTable(answer));
}

function answersTable({ answers }) {
  const join = (tokens) => tokens.map((token, number) => [number ? ", " : null, columnLink(token)]);
  const body = answers.map((row) =>
    h(
      "tr",
      { class: "recommended" },
      h("th", { scope: "row" }, columnLink(row.token)),
      h("td", { class: "because" }, row.because_of.length ? join(row.because_of) : "–"),
      h("td", { class: "number" }, row.score.toFixed(2).replace("-", "−")),
    ),
  );
  return table("Recommended columns", ["column", "because of", "score"], body);
}
