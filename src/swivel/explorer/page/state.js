// What the page shows, as the address says it: every state has a link, and the back button works.

const DEFAULTS = {
  tab: "word", // word, analogy, recommend, compare, map
  q: "", // a word or an expression
  guess: "", // 1: guess an unknown word from its spelling
  basket: "", // columns of a new row, a line each
  list: "similar", // similar words, or the columns that a word goes with
  a: "", // the words of analogies and comparisons
  b: "",
  c: "",
  method: "3cosadd",
  view: "", // saved, w, c, w+c; "": the first
  n: "20", // how many answers
  restrict_vocab: "", // so many of the most frequent words; "": all
  layout: "", // pca, umap; "": the best there is
  color: "cluster", // or frequency
  at: "", // x,y,zoom of the map, in thousandths; "": everything
};

const VALUES = {
  tab: /^(word|analogy|recommend|compare|map)$/,
  guess: /^1?$/,
  list: /^(similar|columns)$/,
  method: /^3cos(add|mul)$/,
  n: /^(10|20|50|100|200)$/,
  restrict_vocab: /^(1000|10000|100000)?$/,
  layout: /^(pca|umap)?$/,
  color: /^(cluster|frequency)$/,
  at: /^(-?\d{1,7},-?\d{1,7},\d{1,7})?$/,
};

let unknown = [];
let state = read();
const listeners = [];

function read(search = location.search) {
  const query = new URLSearchParams(search);
  const isKnown = ([name, value]) => name in DEFAULTS && (VALUES[name]?.test(value) ?? true);
  unknown = [...query].filter((pair) => !isKnown(pair)).map(([name, value]) => `${name}=${value}`);
  const known = Object.fromEntries([...query].filter(isKnown));
  return Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [name, known[name] ?? value]));
}

/** Parts of the address that mean nothing here, such as `tab=wrod`; the page says so. */
export const unknownParts = () => unknown;

/** Leave out a value of the address that turned out to mean nothing. */
export function reject(name) {
  unknown.push(`${name}=${state[name]}`);
  state = { ...state, [name]: DEFAULTS[name] };
}

/** The state as it is. */
export const current = () => state;

/** The view of a set that is shown: the one that the address names if the set has it, else the first. */
export const viewOf = (set) => set.views.find(({ key }) => key === state.view) ?? set.views[0];

/** The address of the state with some changes: what links point at. */
export function link(changes) {
  const next = { ...state, ...changes };
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(next)) if (value !== DEFAULTS[name]) query.set(name, value);
  return `?${query}`;
}

/** Change the state. Moving the map replaces the address; everything else is a step that one can go back from. */
export function go(changes, { replace = false } = {}) {
  const url = link(changes);
  const before = state;
  unknown = [];
  state = { ...state, ...changes };
  if (url !== location.search && !(url === "?" && location.search === "")) {
    history[replace ? "replaceState" : "pushState"](null, "", url);
  }
  for (const listener of listeners) listener(state, before);
}

/** Call back with the new state and the one before, whenever it changes. */
export function onChange(listener) {
  listeners.push(listener);
}

/** Let links inside the page change the state instead of loading it again. */
export function catchLinks() {
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href^='?']");
    if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    go(read(anchor.getAttribute("href")));
  });
  addEventListener("popstate", () => {
    const before = state;
    state = read();
    for (const listener of listeners) listener(state, before);
  });
}
