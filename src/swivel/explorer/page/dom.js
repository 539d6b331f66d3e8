// Small helpers for the page. Labels are other people's text: everything here goes through textContent, never innerHTML.

/** Make an element: h("a", { href, class: "word", onclick }, "text", child, ...). */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Say something to screen readers. */
export function announce(text) {
  document.getElementById("live").textContent = text;
}

const WHOLE = new Intl.NumberFormat("en");

export const whole = (number) => WHOLE.format(number);
export const cosine = (number) => number.toFixed(3).replace("-", "−");

/** Counts are sums of 1/distance: whole numbers are shown as such, others with one digit. */
export const amount = (number) => (Number.isInteger(number) ? whole(number) : WHOLE.format(Math.round(number * 10) / 10));

export const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** A bar from 0 to a share of 1. Its width is set through the style object, which the content policy allows. */
export function bar(share, kind = "") {
  const fill = h("span", { class: `fill ${kind}` });
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span", { class: "bar", "aria-hidden": "true" }, fill);
}

/** A switch among a few values, as radio buttons: arrows work, screen readers know it. */
export function segments(legend, name, choices, chosen, onchange) {
  const options = choices.map(({ key, label, disabled }) =>
    h(
      "label",
      {},
      h("input", { type: "radio", name, value: key, checked: key === chosen, disabled, onchange: () => onchange(key) }),
      h("span", {}, label),
    ),
  );
  return h("fieldset", { class: "segments" }, h("legend", { class: "hidden" }, legend), options);
}

/** Wait until nothing has happened for a while. */
export function calm(action, milliseconds) {
  let timer = 0;
  return (...rest) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...rest), milliseconds);
  };
}
