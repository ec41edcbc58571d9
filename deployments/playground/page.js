// Elements and colours. Text only ever becomes text nodes, never markup: what a model writes stays
// text.

/** Both columns fit beside each other, as in style.css. */
export const WIDE = matchMedia("(min-width: 60rem) and (min-height: 36rem)");

/** Where the focus of a field brings up a keyboard over the page. */
export const TOUCH = matchMedia("(pointer: coarse)");

export const byId = (id) => document.getElementById(id);

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

export const TARGET = "target";
const COLOURS = 8;
const drafters = [];

/** The class that sets the colour of a drafter, the same for the whole visit. */
export function colourOf(drafter) {
  if (drafter === TARGET) return "of-target";
  if (!drafters.includes(drafter)) drafters.push(drafter);
  return `of-${drafters.indexOf(drafter) % COLOURS}`;
}

/** A square in the colour of a drafter. */
export const swatch = (drafter) => el("i", { class: `swatch ${colourOf(drafter)}`, "aria-hidden": "true" });

/** Spaces and line breaks of a token, made visible. */
export function spelled(text) {
  if (text === "") return "∅";
  return text.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length))
    .replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

export const percent = (share) => (share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`);

export function duration(seconds) {
  if (seconds < 0.00005) return "< 0.1 ms";
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  return `${seconds.toFixed(2)} s`;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
