// One map on the screen: moving, zooming, labels that thin out, picking. It knows nothing of the server.
import { makePainter } from "./points.js";

const MOST_ZOOM = 400;
const MORPH_MILLISECONDS = 900;
const PICK_PIXELS = 14;
const CELL = 8; // pixels: labels are kept apart on a grid of such cells
const AREA_A_LABEL = 7500; // square pixels
const TRAVEL_MILLISECONDS = 500;
const TRAVEL_ZOOM = 40; // at most
const LONE_ZOOM = 4; // where there is only one mark
const FITTED_MARKS = 12; // the marks nearest to the first one are in view after a travel
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class MapView {
  /** `host` is a focusable element; `pick(id)` is called when a point is chosen, `moved()` after each move. */
  constructor(host, { pick, moved }) {
    Object.assign(this, { host, pick, moved, labels: [], order: null, marks: [], hovered: -1, mixed: 1, zoom: 1, x: 0, y: 0 });
    this.painter = makePainter();
    this.dots = this.painter.canvas;
    this.overlay = document.createElement("canvas");
    for (const canvas of [this.dots, this.overlay]) canvas.setAttribute("aria-hidden", "true");
    host.prepend(this.dots, this.overlay);
    this.context = this.overlay.getContext("2d");
    this.places = new Float32Array(0);
    this.widths = new Map();
    this.pointers = new Map();
    new ResizeObserver(() => this.#resize()).observe(host);
    this.#listen();
    this.restyle();
  }

  /** Show places (x, y in turn); points that were there move to the new ones. */
  setPlaces(places) {
    const same = this.places.length === places.length && !still.matches;
    const before = same ? this.places : places;
    this.places = places;
    this.painter.setPlaces(before, places);
    this.mixed = same ? 0 : 1;
    if (same) this.#morph(performance.now());
    this.redraw();
  }

  setColors(colors) {
    this.painter.setColors(colors);
    this.redraw();
  }

  addLabels(labels) {
    for (const label of labels) this.labels.push(label);
    this.redraw();
  }

  /** Draw the labels of these ids first; without an order, those of common words. */
  setOrder(order) {
    this.order = order;
    this.redraw();
  }

  /** Mark points: the first strongly, the others lightly. */
  mark(ids) {
    this.marks = ids;
    this.redraw();
  }

  /** Go to a place; zoom 1 shows everything. */
  look(x, y, zoom) {
    this.journey = null;
    this.zoom = Math.max(0.5, Math.min(MOST_ZOOM, zoom));
    this.x = Math.max(-2, Math.min(2, x));
    this.y = Math.max(-2, Math.min(2, y));
    this.redraw();
  }

  /** Move to the first mark, so near that the marks around it fill the view. */
  travel() {
    if (!this.marks.length || !this.width) return;
    const [x, y] = [this.places[2 * this.marks[0]], this.places[2 * this.marks[0] + 1]];
    const around = this.marks.map((id) => [Math.abs(this.places[2 * id] - x), Math.abs(this.places[2 * id + 1] - y)]);
    around.sort((one, other) => Math.hypot(...one) - Math.hypot(...other));
    const [wide, high] = [0, 1].map((axis) => Math.max(1e-6, ...around.slice(0, FITTED_MARKS).map((each) => each[axis])));
    if (around.length === 1) return this.#glide(x, y, LONE_ZOOM);
    const fitting = Math.min((0.36 * this.width) / wide, (0.36 * this.height) / high) / (this.scale / this.zoom);
    this.#glide(x, y, Math.max(1, Math.min(TRAVEL_ZOOM, fitting)));
  }

  #glide(x, y, zoom) {
    const [began, from] = [performance.now(), [this.x, this.y, Math.log(this.zoom)]];
    const journey = (this.journey = {});
    const step = (now) => {
      if (this.journey !== journey) return; // The user moved the map, or it goes elsewhere.
      const t = still.matches ? 1 : Math.min(1, Math.max(0, now - began) / TRAVEL_MILLISECONDS);
      const share = t * t * (3 - 2 * t);
      const [nextX, nextY, level] = [x, y, Math.log(zoom)].map((end, axis) => from[axis] + (end - from[axis]) * share);
      this.look(nextX, nextY, Math.exp(level));
      if (t < 1) {
        this.journey = journey;
        requestAnimationFrame(step);
      }
    };
    step(began);
  }

  /** Take over colors of the page, after it became light or dark. */
  restyle() {
    const style = getComputedStyle(this.host);
    this.ink = style.getPropertyValue("--ink").trim();
    this.paper = style.getPropertyValue("--map").trim();
    this.accent = style.getPropertyValue("--accent").trim();
    this.font = style.fontFamily;
    this.redraw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.#draw();
    });
  }

  get scale() {
    return (Math.min(this.width, this.height) / 2.15) * this.zoom;
  }

  /** Ids of the points on the screen, common ones first or in another order, at most so many. */
  inView(most, order = null) {
    const [found, halfX, halfY] = [[], this.width / 2 / this.scale, this.height / 2 / this.scale];
    for (let rank = 0; rank < this.places.length / 2 && found.length < most; rank++) {
      const i = order ? order[rank] : rank;
      if (Math.abs(this.places[2 * i] - this.x) < halfX && Math.abs(this.places[2 * i + 1] - this.y) < halfY) found.push(i);
    }
    return found;
  }

  toScreen(id) {
    return [(this.places[2 * id] - this.x) * this.scale + this.width / 2, this.height / 2 - (this.places[2 * id + 1] - this.y) * this.scale];
  }

  /** Id of the point nearest to a place on the screen, -1 where none is near. */
  nearest(px, py, reach = PICK_PIXELS) {
    const [x, y] = [(px - this.width / 2) / this.scale + this.x, (this.height / 2 - py) / this.scale + this.y];
    let [best, least] = [-1, (reach / this.scale) ** 2];
    for (let i = 0; i < this.places.length / 2; i++) {
      const distance = (this.places[2 * i] - x) ** 2 + (this.places[2 * i + 1] - y) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  #resize() {
    const { width, height } = this.host.getBoundingClientRect();
    if (!width || !height) return;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    Object.assign(this, { width, height, ratio });
    for (const canvas of [this.dots, this.overlay]) [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    this.#draw(); // at once: a canvas whose size was set is empty until then
  }

  #morph(began) {
    const step = (now) => {
      const t = Math.min(1, (now - began) / MORPH_MILLISECONDS);
      this.mixed = t * t * (3 - 2 * t);
      this.redraw();
      if (t < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  #draw() {
    if (!this.width) return;
    const count = this.places.length / 2;
    // Fewer points, or a nearer look: larger and stronger ones.
    const size = Math.min(9, Math.max(2.4, Math.min(6, 420 / Math.sqrt(count))) * Math.max(1, this.zoom) ** 0.3);
    const opacity = Math.min(0.92, (count > 30000 ? 0.5 : 0.8) * (1 + Math.log2(Math.max(1, this.zoom)) / 6));
    this.painter.draw({ x: this.x, y: this.y, scale: this.scale, mixed: this.mixed, size, opacity: this.marks.length ? opacity * 0.6 : opacity, ratio: this.ratio });
    const { context } = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    if (this.mixed === 1) this.#drawLabels();
  }

  #drawLabels() {
    const taken = new Uint8Array((Math.ceil(this.width / CELL) + 2) * (Math.ceil(this.height / CELL) + 2));
    const marks = this.hovered >= 0 ? [...this.marks, this.hovered] : this.marks;
    const first = this.marks.length ? this.#placeLabel(this.marks[0], 15, true, taken) : null; // before all that is near it
    for (const id of [...marks].reverse()) this.#drawRing(id, id === this.marks[0], taken);
    if (this.hovered >= 0) this.#drawLabel(this.hovered, 12.5, true, taken);
    for (const id of this.marks.slice(1)) this.#drawLabel(id, 12.5, true, taken);
    if (first) this.#write(first);
    let left = (this.width * this.height) / AREA_A_LABEL / (this.marks.length ? 2.5 : 1);
    this.context.globalAlpha = this.marks.length ? 0.6 : 1;
    const marked = new Set(marks);
    for (const id of this.inView(left * 40, this.order)) {
      if (left <= 0) break;
      if (!marked.has(id) && this.labels[id] !== undefined && this.#drawLabel(id, 11.5, false, taken)) left--;
    }
    this.context.globalAlpha = 1;
  }

  #drawRing(id, strong, taken) {
    const [px, py] = this.toScreen(id);
    if (px < -20 || py < -20 || px > this.width + 20 || py > this.height + 20) return;
    const { context } = this;
    context.beginPath();
    context.arc(px, py, strong ? 7 : 4, 0, 2 * Math.PI);
    context.fillStyle = strong ? this.accent : this.paper;
    context.strokeStyle = this.accent;
    context.lineWidth = 2;
    context.fill();
    context.stroke();
    this.#take(taken, px - 2, py - 2, 4, 4);
  }

  /** Draw a label beside its point where nothing is yet; returns whether it was drawn. */
  #drawLabel(id, size, strong, taken) {
    const placed = this.#placeLabel(id, size, strong, taken);
    if (placed) this.#write(placed);
    return placed !== null;
  }

  /** Find room for a label and take it; null where there is none. */
  #placeLabel(id, size, strong, taken) {
    const { context } = this;
    const label = this.#shorten(this.labels[id] ?? "");
    const font = `${strong ? 600 : 400} ${size}px ${this.font}`;
    context.font = font;
    const key = `${size}${label}`;
    if (!this.widths.has(key)) this.widths.set(key, context.measureText(label).width);
    const [px, py] = this.toScreen(id);
    const [gap, width] = [strong ? (size > 13 ? 12 : 9) : 5, this.widths.get(key)];
    const sides = [[px + gap, py], [px - gap - width, py]];
    if (strong) sides.push([px - width / 2, py - gap - size / 2], [px - width / 2, py + gap + size / 2]);
    const isInside = ([x, y]) => x >= 0 && x + width <= this.width && y >= size * 0.6 && y + size * 0.7 <= this.height;
    const uncut = sides.filter(isInside);
    const found = (strong ? uncut : uncut.slice(0, 1)).find(([x, y]) => this.#take(taken, x, y - size * 0.6, width, size * 1.3));
    return found ? { label, font, x: found[0], y: found[1] } : null;
  }

  #write({ label, font, x, y }) {
    const { context } = this;
    context.font = font;
    context.lineWidth = 3.5;
    context.lineJoin = "round";
    context.textBaseline = "middle";
    context.strokeStyle = this.paper;
    context.strokeText(label, x, y);
    context.fillStyle = this.ink;
    context.fillText(label, x, y);
  }

  #shorten = (label) => (label.length > 28 ? `${label.slice(0, 27)}…` : label);

  /** Take the cells under a rectangle, unless one of them is taken. */
  #take(taken, x, y, width, height) {
    const wide = Math.ceil(this.width / CELL) + 2;
    const [left, right] = [Math.max(0, Math.floor(x / CELL)), Math.min(wide - 1, Math.floor((x + width) / CELL))];
    const [top, bottom] = [Math.max(0, Math.floor(y / CELL)), Math.min(taken.length / wide - 1, Math.floor((y + height) / CELL))];
    for (let row = top; row <= bottom; row++) for (let cell = left; cell <= right; cell++) if (taken[row * wide + cell]) return false;
    for (let row = top; row <= bottom; row++) taken.fill(1, row * wide + left, row * wide + right + 1);
    return true;
  }

  #listen() {
    const { host } = this;
    host.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.#zoomAt(...this.#inside(event), Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)));
    }, { passive: false });
    host.addEventListener("pointerdown", (event) => this.#press(event));
    host.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) host.addEventListener(name, (event) => this.#lift(event));
    host.addEventListener("pointerleave", () => this.#hover(-1));
    host.addEventListener("dblclick", (event) => this.#zoomAt(...this.#inside(event), 2));
    host.addEventListener("keydown", (event) => this.#key(event));
  }

  #inside(event) {
    const box = this.host.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #zoomAt(px, py, factor) {
    const before = this.scale;
    const [dx, dy] = [px - this.width / 2, this.height / 2 - py];
    const zoom = Math.max(0.5, Math.min(MOST_ZOOM, this.zoom * factor));
    const after = (before / this.zoom) * zoom;
    this.look(this.x + dx / before - dx / after, this.y + dy / before - dy / after, zoom);
    this.moved();
  }

  #press(event) {
    if (event.target.closest("button, a, input, details")) return;
    this.host.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.#inside(event));
    this.dragged = 0;
  }

  #move(event) {
    const [px, py] = this.#inside(event);
    const last = this.pointers.get(event.pointerId);
    if (!last) return this.#hover(event.pointerType === "mouse" ? this.nearest(px, py) : -1);
    if (this.pointers.size === 2) this.#pinch(event.pointerId, px, py);
    else this.look(this.x - (px - last[0]) / this.scale, this.y + (py - last[1]) / this.scale, this.zoom);
    this.dragged += Math.abs(px - last[0]) + Math.abs(py - last[1]);
    this.pointers.set(event.pointerId, [px, py]);
  }

  #pinch(moving, px, py) {
    const [, other] = [...this.pointers].find(([id]) => id !== moving);
    const last = this.pointers.get(moving);
    const spread = (x, y) => Math.hypot(x - other[0], y - other[1]) || 1;
    this.#zoomAt((px + other[0]) / 2, (py + other[1]) / 2, spread(px, py) / spread(...last));
  }

  #lift(event) {
    if (!this.pointers.delete(event.pointerId) || this.pointers.size) return;
    if (this.dragged < 5 && event.type === "pointerup") {
      const id = this.nearest(...this.#inside(event), event.pointerType === "mouse" ? PICK_PIXELS : 2 * PICK_PIXELS);
      if (id >= 0) this.pick(id);
    } else this.moved();
  }

  #hover(id) {
    if (id === this.hovered) return;
    this.hovered = id;
    this.host.classList.toggle("pointing", id >= 0);
    this.redraw();
  }

  #key(event) {
    if (event.target !== this.host || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = 60 / this.scale;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (moves[event.key]) this.look(this.x + moves[event.key][0], this.y + moves[event.key][1], this.zoom);
    else if (event.key === "+" || event.key === "=") this.look(this.x, this.y, this.zoom * 1.4);
    else if (event.key === "-") this.look(this.x, this.y, this.zoom / 1.4);
    else if (event.key === "0") this.look(0, 0, 1);
    else if (event.key === "Enter") return this.#pickMiddle(event);
    else return;
    event.preventDefault();
    event.stopPropagation();
    this.moved();
  }

  #pickMiddle(event) {
    event.preventDefault();
    const id = this.nearest(this.width / 2, this.height / 2, Infinity);
    if (id >= 0) this.pick(id);
  }
}
