// A text field with suggestions: completions, and close spellings where what was typed is no word.
import { getJson } from "./api.js";
import { announce, calm, h, whole } from "./dom.js";

let fields = 0;

/** The last word of an expression, and what stands before it: only that is completed. */
export function lastTerm(text) {
  const match = /^(.*(?:^|\s)[+-]\s+)([^]*)$/.exec(text);
  return match ? { before: match[1], term: match[2] } : { before: "", term: text };
}

/**
 * Give a field suggestions (the ARIA combobox pattern).
 *
 * `parameters()` says which set and view; `choose(text)` is called with what was taken; with `expressions`, arithmetic
 * may be typed and its last word is completed.
 */
export function suggestFor(input, { parameters, choose, expressions = false }) {
  const list = h("ul", { class: "suggestions", role: "listbox", id: `suggestions-${fields++}`, "aria-label": "Suggestions", hidden: true });
  input.after(list);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-expanded": "false", "aria-autocomplete": "list", "aria-controls": list.id, autocomplete: "off" })) {
    input.setAttribute(name, value);
  }
  const field = { input, list, marked: -1, asked: null, choose, expressions };
  const ask = calm(() => fill(field, parameters()), 40);
  input.addEventListener("input", ask);
  input.addEventListener("keydown", (event) => press(field, event));
  input.addEventListener("blur", () => setTimeout(() => close(field), 120)); // A click on a suggestion comes after it.
  return { close: () => close(field) };
}

async function fill(field, parameters) {
  field.asked?.abort();
  field.asked = new AbortController();
  const { term } = field.expressions ? lastTerm(field.input.value) : { term: field.input.value };
  if (!term.trim() || document.activeElement !== field.input) return close(field);
  try {
    show(field, await getJson("suggest", { ...parameters, q: term.trim() }, field.asked.signal));
  } catch (error) {
    if (error.name !== "AbortError") close(field);
  }
}

function show(field, { completions, close: near }) {
  const options = [
    ...completions.map((each) => option(field, each, "")),
    ...near.map((each) => option(field, each, "similar spelling")),
  ];
  options.forEach((each, number) => (each.id = `${field.list.id}-${number}`));
  field.list.replaceChildren(...options);
  field.list.hidden = options.length === 0;
  field.marked = -1;
  field.input.setAttribute("aria-expanded", String(options.length > 0));
  field.input.removeAttribute("aria-activedescendant");
  announce(options.length ? `${options.length} suggestions` : "no suggestions");
}

function option(field, { token, count, rank }, note) {
  const facts = note || (count === null ? `#${whole(rank)}` : whole(count));
  const element = h("li", { role: "option", "aria-selected": "false" }, h("span", { class: "token" }, token), h("span", { class: "faint" }, facts));
  element.dataset.token = token;
  element.addEventListener("mousedown", (event) => event.preventDefault());
  element.addEventListener("click", () => take(field, token));
  return element;
}

function press(field, event) {
  const options = [...field.list.children];
  const open = !field.list.hidden;
  if (event.key === "ArrowDown" && open) mark(field, (field.marked + 1) % options.length);
  else if (event.key === "ArrowUp" && open) mark(field, (field.marked <= 0 ? options.length : field.marked) - 1);
  else if (event.key === "Enter") take(field, open && field.marked >= 0 ? options[field.marked].dataset.token : null);
  else if (event.key === "Escape" && open) close(field);
  else if (event.key === "Escape") field.input.blur(); // Then keys mean what the help says.
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function mark(field, number) {
  const options = [...field.list.children];
  options.forEach((each, place) => each.setAttribute("aria-selected", String(place === number)));
  field.marked = number;
  if (options[number]) {
    field.input.setAttribute("aria-activedescendant", options[number].id);
    options[number].scrollIntoView({ block: "nearest" });
  }
}

/** Take a suggestion, or (null) what was typed. */
function take(field, token) {
  const typed = field.input.value.trim();
  if (token !== null) field.input.value = (field.expressions ? lastTerm(field.input.value).before : "") + token;
  close(field);
  const text = token === null ? typed : field.input.value;
  if (text) field.choose(text);
}

function close(field) {
  field.asked?.abort();
  field.list.hidden = true;
  field.marked = -1;
  field.input.setAttribute("aria-expanded", "false");
  field.input.removeAttribute("aria-activedescendant");
}
