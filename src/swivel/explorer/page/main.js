// The page: it begins here. State in, tabs and maps out; keys; light and dark.
import { drawAnalogy } from "./analogy.js";
import { getJson } from "./api.js";
import { drawCompare } from "./compare.js";
import { h, segments } from "./dom.js";
import { MapPanel } from "./map.js";
import { drawCard, drawWord, refusal } from "./neighbors.js";
import { drawRecommend } from "./recommend.js";
import { suggestFor } from "./search.js";
import { catchLinks, current, go, onChange, reject, unknownParts, viewOf } from "./state.js";

const TABS = { word: drawWord, analogy: drawAnalogy, recommend: drawRecommend, compare: drawCompare, map: drawWord };
const DRAWN_BY = ["tab", "q", "guess", "basket", "list", "a", "b", "c", "method", "view", "n", "restrict_vocab"]; // what a tab depends on; the map's place is not among it
const find = (id) => document.getElementById(id);

const query = find("query");
const results = find("results");
let sets = [];
let maps = [];
let calledOff = new AbortController();

async function begin() {
  setTheme(localStorage.getItem("theme") ?? "");
  listenToKeys();
  catchLinks();
  try {
    const answer = await getJson("sets");
    sets = answer.sets.map((set, number) => ({ ...set, number }));
  } catch (error) {
    results.replaceChildren(refusal(error));
    return;
  }
  nameTabs();
  const { tab, view } = current();
  if (find(`tab-${tab}`).hidden) reject("tab");
  if (view && sets.every((set) => set.views.every(({ key }) => key !== view))) reject("view");
  suggestFor(query, { parameters: () => ({ set: 0, view: viewOf(sets[0]).key }), choose: ask, expressions: true });
  find("search").addEventListener("submit", (event) => event.preventDefault());
  onChange((state, before) => show(state, before));
  maps = sets.map((set) => new MapPanel(set, sets.length > 1));
  find("maps").replaceChildren(...maps.map((map) => map.element));
  document.body.classList.toggle("several", sets.length > 1);
  await show(current(), null);
  for (const map of maps) map.start();
}

/** The tabs that make sense: analogies are for words, recommendations for the rows of a table. */
function nameTabs() {
  const isTable = sets[0].is_table;
  find("tab-analogy").hidden = isTable;
  find("tab-recommend").hidden = !isTable;
  if (isTable) find("tab-word").textContent = "Neighbors";
}

const shownTabs = () => [...document.querySelectorAll("[role=tab]:not([hidden])")];

/** What was typed goes to the tab that takes it: arithmetic and words to the first. */
function ask(text) {
  const { tab } = current();
  const stays = tab === "map" || (tab === "recommend" && viewOf(sets[0]).noun === "row");
  go({ q: text, guess: "", basket: "", tab: stays ? tab : "word", at: "" });
  query.blur();
}

async function show(state, before) {
  document.body.dataset.tab = state.tab;
  drawTabs(state);
  drawViews(state);
  if (document.activeElement !== query) query.value = state.q;
  const { noun } = viewOf(sets[0]);
  query.placeholder = noun === "word" ? "A word, or king - man + woman" : `A ${noun}`;
  document.title = titleOf(state);
  for (const map of maps) if (map.screen) map.show();
  if (before && DRAWN_BY.every((name) => state[name] === before[name])) return;
  calledOff.abort();
  calledOff = new AbortController();
  const { signal } = calledOff;
  results.setAttribute("aria-busy", "true");
  const place = h("div");
  let marks = [];
  try {
    marks = await TABS[state.tab](place, sets, signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    place.replaceChildren(refusal(error));
  }
  if (signal.aborted) return;
  const focused = document.activeElement?.id;
  results.replaceChildren(...warnings(), place);
  if (focused && results.querySelector(`#${CSS.escape(focused)}`)) find(focused).focus(); // a form that was drawn anew
  const alerts = state.tab === "map" ? [...results.querySelectorAll(".refused")] : []; // The map hides the results.
  drawCard(find("card"), state, marks[0], alerts, viewOf(sets[0]));
  maps.forEach((map, number) => map.mark(marks[number] ?? []));
  if (!before || state.tab !== before.tab || state.q !== before.q) results.scrollTop = 0;
  results.removeAttribute("aria-busy");
}

/** What the address has that this page does not know. */
function warnings() {
  const parts = unknownParts();
  if (!parts.length) return [];
  return [h("div", { class: "refused unknown", role: "alert" }, h("p", {}, `This link has values that this page does not know, and leaves them out: ${parts.join(", ").slice(0, 200)}`))];
}

function titleOf({ tab, q, a, b, c }) {
  const subject = { word: q, recommend: q && `for ${q}`, map: q || "map", analogy: a && `${a} : ${b} = ${c} : ?`, compare: a && `${a} and ${b}` }[tab];
  return subject ? `${subject} · swivel` : "swivel explore";
}

function drawTabs(state) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.dataset.tab === state.tab;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) results.setAttribute("aria-labelledby", tab.id);
  }
}

function drawViews(state) {
  const choices = sets[0].views;
  const place = find("views");
  const chosen = viewOf(sets[0]).key;
  if (place.dataset.chosen === chosen) return;
  const made = segments("Which vectors", "view", choices, chosen, (key) => go({ view: key === choices[0].key ? "" : key }));
  made.id = "views";
  made.dataset.chosen = chosen;
  made.hidden = choices.length < 2;
  const focused = place.contains(document.activeElement);
  place.replaceWith(made);
  if (focused) made.querySelector("input:checked")?.focus();
}

/** "", light or dark; "" follows the system. */
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  for (const map of maps) map.restyle();
}

function turnTheme() {
  const isDark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
  const theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", theme);
  setTheme(theme);
}

function nextView() {
  const keys = sets[0].views.map(({ key }) => key);
  const next = keys[(keys.indexOf(viewOf(sets[0]).key) + 1) % keys.length];
  go({ view: next === keys[0] ? "" : next });
}

function listenToKeys() {
  find("theme").addEventListener("click", turnTheme);
  find("help-button").addEventListener("click", () => find("help").showModal());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(document.documentElement.dataset.theme));
  for (const tab of document.querySelectorAll("[role=tab]")) tab.addEventListener("click", () => go({ tab: tab.dataset.tab }));
  document.querySelector("[role=tablist]").addEventListener("keydown", moveTab);
  document.addEventListener("keydown", pressAnywhere);
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const tabs = shownTabs();
  const next = tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length];
  go({ tab: next.dataset.tab });
  next.focus();
}

function pressAnywhere(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
  if ((event.key === "ArrowDown" || event.key === "ArrowUp") && moveThroughWords(event)) return;
  if (event.target.matches("input[type=text], select, textarea")) return;
  const acts = { "/": focusSearch, "?": () => find("help").showModal(), t: turnTheme, v: nextView };
  const tab = shownTabs()[Number(event.key) - 1];
  const act = acts[event.key] ?? (tab && (() => go({ tab: tab.dataset.tab })));
  if (!act) return;
  event.preventDefault();
  act();
}

function focusSearch() {
  query.focus();
  query.select();
}

/** Arrows go through the words of the results, from the search field on. */
function moveThroughWords(event) {
  const inResults = results.contains(event.target) && event.target.matches("a.word, a.chip");
  if (!inResults && event.target !== query) return false;
  const words = [...results.querySelectorAll("table a.word, ol a.word, a.chip")];
  const place = words.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1);
  if (event.target === query && event.key === "ArrowUp") return false;
  if (place < 0) focusSearch();
  else words[place]?.focus();
  event.preventDefault();
  return true;
}

begin();
