// The map of one set: its data, its switches, its legend, and the same in words for those who do not see it.
import { getArray, getJson, streamLabels } from "./api.js";
import { announce, calm, capital, h, segments, whole } from "./dom.js";
import { MapView } from "./map_view.js";
import { current, go, link, viewOf } from "./state.js";

const POLL_MILLISECONDS = 1500;
const WORDS_IN_VIEW = 30;
const PALETTE = ["#4c78c9", "#e8833a", "#4fa35b", "#d9534f", "#9a6fc4", "#3fa7a3", "#d4a72c", "#e377a8", "#96684a", "#6b8e23", "#5b6abf", "#8a8f98"];
const RAMPS = { light: ["#b9cbe0", "#5c8fc7", "#8a4bb0", "#c2255c"], dark: ["#2f4a68", "#4a9bd1", "#f2b04a", "#fff3c4"] };

export class MapPanel {
  constructor(set, several) {
    this.set = set;
    this.view = null;
    this.ids = new Map();
    this.wanted = [];
    this.frame = h("div", { class: "frame", tabindex: "0", role: "application", "aria-label": `Map of ${set.name}: arrows move, plus and minus zoom, Enter selects the point in the center`, "aria-describedby": `words-${set.number}` });
    this.status = h("p", { class: "status faint" });
    this.tools = h("div", { class: "map-tools" });
    this.legend = h("details", { class: "legend" }, h("summary", {}, "Clusters"));
    this.words = h("details", { class: "legend inview" }, h("summary", {}, this.#inView()));
    this.summary = h("p", { class: "hidden", id: `words-${set.number}` });
    const title = several ? h("h2", { class: "set" }, set.name) : h("h2", { class: "hidden" }, "Map");
    this.element = h("article", { class: "map" }, title, this.frame, this.tools, this.status, h("div", { class: "legends" }, this.legend, this.words), this.summary);
    this.words.addEventListener("toggle", () => this.#describe());
  }

  /** Begin to show: the element must be in the page. */
  start() {
    this.screen = new MapView(this.frame, { pick: (id) => this.#pick(id), moved: calm(() => this.#moved(), 250) });
    this.show();
  }

  /** Follow the state: another view loads other places, another layout or color is drawn. */
  async show() {
    const state = current();
    const view = viewOf(this.set).key;
    if (this.view !== view) return this.#load(view);
    if (state.at) this.#look(state);
    if (this.places) await this.#arrange(state);
  }

  /** Mark words, the first strongly, and go there unless the address says where to look. */
  mark(tokens) {
    this.wanted = tokens;
    this.screen?.mark(tokens.map((token) => this.ids.get(token)).filter((id) => id !== undefined));
    if (this.complete) this.#look(current());
  }

  restyle() {
    this.screen?.restyle();
    if (this.places) this.#paint(current());
  }

  async #load(view) {
    this.view = view;
    this.calledOff?.abort();
    this.calledOff = new AbortController();
    const [ask, { signal }] = [{ set: this.set.number, view }, this.calledOff];
    Object.assign(this, { ask, places: null, clusters: null, counts: null, shown: "", kept: {}, complete: false });
    this.ids.clear();
    Object.assign(this.screen, { labels: [], order: null });
    this.status.textContent = "Loading the map…";
    try {
      const [places, counts] = await Promise.all(["points", "counts"].map((name) => getArray(`map/${name}`, ask, Float32Array, signal)));
      Object.assign(this, { places, counts }); // both at once: whoever sees places may paint them
      this.kept.pca = this.places;
      this.#look(current());
      this.screen.setPlaces(this.places);
      this.shown = "pca";
      this.#paint(current());
      await Promise.all([this.#readLabels(signal), this.#follow(signal)]);
    } catch (error) {
      if (error.name !== "AbortError") this.status.textContent = error.message;
    }
  }

  async #readLabels(signal) {
    let next = 0;
    await streamLabels(this.ask, (labels) => {
      for (const label of labels) this.ids.set(label, next++);
      this.screen.addLabels(labels);
      this.mark(this.wanted);
    }, signal);
    this.complete = true;
    this.#look(current());
    this.#describe();
  }

  /** Ask how far the map is until there is nothing more to come. */
  async #follow(signal) {
    for (;;) {
      this.state = await getJson("map", this.ask, signal);
      if (this.state.clusters && !this.clusters) {
        this.clusters = await getArray("map/clusters", this.ask, Uint16Array, signal);
        this.screen.setOrder(await getArray("map/order", this.ask, Uint32Array, signal));
        this.#drawLegend();
        this.#paint(current());
      }
      await this.#arrange(current());
      if (this.state.umap !== "computing") return;
      await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
      if (signal.aborted) return;
    }
  }

  /** Show the layout that is asked for, or the best there is. */
  async #arrange(state) {
    const ready = this.state?.umap === "ready";
    const layout = ready && state.layout !== "pca" ? "umap" : "pca";
    if (layout !== this.shown) {
      this.kept[layout] ??= await getArray("map/points", { ...this.ask, layout }, Float32Array, this.calledOff.signal);
      Object.assign(this, { places: this.kept[layout], shown: layout });
      this.screen.setPlaces(this.places);
      this.#look(state);
      announce(`Map by ${layout === "umap" ? "UMAP" : "principal components"}`);
    }
    this.#paint(state);
    this.#drawTools(state, layout);
  }

  #drawTools(state, layout) {
    const { umap, seconds, problem, points, total } = this.state ?? { umap: "computing", seconds: 0, points: 0, total: 0 };
    const key = [layout, state.color, umap, this.#kind()].join();
    const part = points < total ? `The ${whole(points)} most common of ${whole(total)} ${viewOf(this.set).noun}s. ` : "";
    const waiting = umap === "computing" ? `Computing UMAP…${seconds ? ` ${whole(Math.round(seconds))} s` : ""}` : problem;
    this.status.textContent = part + waiting;
    this.status.hidden = !this.status.textContent;
    if (this.drawn === key) return; // Radio buttons that are replaced lose the focus.
    this.drawn = key;
    const name = `${this.set.number}`;
    this.tools.replaceChildren(
      segments("Layout", `layout-${name}`, [{ key: "pca", label: "PCA" }, { key: "umap", label: "UMAP", disabled: umap !== "ready" }], layout, (chosen) => go({ layout: chosen })),
      segments("Color", `color-${name}`, [{ key: "cluster", label: this.#kind() }, { key: "frequency", label: "Frequency" }], state.color, (chosen) => go({ color: chosen })),
      h("span", { class: "zoom" }, this.#button("−", "Farther", 1 / 1.6, "step"), this.#button("+", "Nearer", 1.6, "step"), this.#button("⤢", "Everything", 0)),
    );
  }

  #button(text, label, factor, kind = "") {
    const act = () => {
      if (factor) this.screen.look(this.screen.x, this.screen.y, this.screen.zoom * factor);
      else this.screen.look(0, 0, 1);
      this.#moved();
    };
    return h("button", { type: "button", class: `round ${kind}`, "aria-label": label, title: label, onclick: act }, text);
  }

  #paint(state) {
    const dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
    const byCluster = state.color === "cluster" && this.clusters;
    const colors = byCluster ? clusterColors(this.clusters) : frequencyColors(this.counts, this.places.length / 2, dark ? "dark" : "light");
    this.screen.setColors(colors);
    this.legend.hidden = !this.clusters;
  }

  /** What the colors of points mean: clusters, or the user's own classes. */
  #kind = () => (this.state?.has_classes ? "Class" : "Cluster");

  #drawLegend() {
    const rows = this.state.clusters.map(({ name, size, typical }, number) => {
      const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = PALETTE[number % PALETTE.length];
      return h("tr", {}, h("th", { scope: "row" }, swatch, name), h("td", { class: "number" }, whole(size)), h("td", {}, typical.slice(0, 4).map((token, place) => [place ? ", " : "", this.#word(token)])));
    });
    const heads = h("tr", {}, [this.#kind().toLowerCase(), `${viewOf(this.set).noun}s`, "typical"].map((name) => h("th", { scope: "col" }, name)));
    const title = this.#kind() === "Class" ? "Classes" : "Clusters";
    this.legend.replaceChildren(h("summary", {}, title), h("table", {}, h("caption", { class: "hidden" }, `${title} of the map`), h("thead", {}, heads), h("tbody", {}, rows)));
  }

  #word(token) {
    return h("a", { class: "word", href: link({ tab: current().tab === "map" ? "map" : "word", q: token, at: "" }) }, token);
  }

  #inView = () => `${capital(viewOf(this.set).noun)}s in view`;

  /** The same in words: the commonest that are on the screen. */
  #describe() {
    const tokens = this.screen.inView(WORDS_IN_VIEW).map((id) => this.screen.labels[id]).filter((label) => label !== undefined);
    this.summary.textContent = `The most common ${viewOf(this.set).noun}s in view: ${tokens.slice(0, 10).join(", ")}.`;
    const items = tokens.map((token) => h("li", {}, this.#word(token)));
    this.words.replaceChildren(h("summary", {}, this.#inView()), this.words.open ? h("ul", {}, items) : "");
  }

  #pick(id) {
    const q = this.screen.labels[id];
    if (q !== undefined) go({ tab: current().tab === "map" ? "map" : "word", q });
  }

  #moved() {
    this.#describe();
    if (this.set.number > 0) return; // The address holds one place; two maps have no common ground.
    const { x, y, zoom } = this.screen;
    const everything = x === 0 && y === 0 && zoom === 1;
    go({ at: everything ? "" : [x, y, zoom].map((value) => Math.round(value * 1000)).join(",") }, { replace: true });
  }

  /** Look where the address says; if it does not, at the marked words, or at everything. */
  #look({ at }) {
    if (at && this.set.number === 0) this.screen.look(...at.split(",").map((value) => Number(value) / 1000));
    else if (this.screen.marks.length) this.screen.travel();
    else this.screen.look(0, 0, 1);
  }
}

const parse = (hex) => [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));

function clusterColors(clusters) {
  const palette = PALETTE.map(parse);
  const colors = new Uint8Array(clusters.length * 4).fill(255);
  clusters.forEach((cluster, i) => colors.set(palette[cluster % palette.length], 4 * i));
  return colors;
}

/** By the logarithm of the count, or of the rank where nobody counted. */
function frequencyColors(counts, count, theme) {
  const ramp = RAMPS[theme].map(parse);
  const counted = counts.some((value) => value > 0);
  const height = (i) => (counted ? Math.log1p(counts[i]) : -Math.log1p(i));
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < count; i++) [low, high] = [Math.min(low, height(i)), Math.max(high, height(i))];
  const colors = new Uint8Array(count * 4).fill(255);
  for (let i = 0; i < count; i++) {
    const t = (Math.max(0, Math.min(1, (height(i) - low) / (high - low || 1))) ** 0.6) * (ramp.length - 1);
    const [from, share] = [Math.min(Math.floor(t), ramp.length - 2), t - Math.min(Math.floor(t), ramp.length - 2)];
    for (let k = 0; k < 3; k++) colors[4 * i + k] = ramp[from][k] * (1 - share) + ramp[from + 1][k] * share;
  }
  return colors;
}
