// What the page shows, as the address says it: every state has a link, and the back button works.

const DEFAULTS = {
  tab: "word", // word, analogy, compare, map
  q: "", // a word or an expression
  list: "similar", // similar words, or the columns that a word goes with
  a: "", // the words of analogies and comparisons
  b: "",
  c: "",
  method: "3cosadd",
  view: "", // saved, w, c, w+c; "": the first
  n: "20", // how many answers
  layout: "", // pca, umap; "": the best there is
  color: "cluster", // or frequency
  at: "", // x,y,zoom of the map, in thousandths; "": everything
};

let state = read();
const listeners = [];

function read() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [name, query.get(name) ?? value]));
}

/** The state as it is. */
export const current = () => state;

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
    const query = new URLSearchParams(anchor.getAttribute("href"));
    go(Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [name, query.get(name) ?? value])));
  });
  addEventListener("popstate", () => {
    const before = state;
    state = read();
    for (const listener of listeners) listener(state, before);
  });
}
