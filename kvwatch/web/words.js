// Figures as a reader reads them. null is unknown and is shown as that word, with the reason.

import { h } from "./elements.js";

const MIB = 2 ** 20;
const wholeFormat = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const shortFormat = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export function isKnown(value) {
  return value !== null && value !== undefined;
}

export function sum(values) {
  return values.every(isKnown) ? values.reduce((total, value) => total + value, 0) : null;
}

function signed(text) {
  return text.replace("-", "\u2212");
}

export function whole(value) {
  return signed(wholeFormat.format(value));
}

/** Three digits, for what is rarely a whole number. */
export function short(value) {
  return signed(shortFormat.format(value));
}

/** Round down, so that a pool which is not quite full does not read 100 %. */
export function percent(ratio) {
  if (ratio === 0 || ratio === 1) return `${100 * ratio}\u00a0%`;
  const tenths = Math.floor(ratio * 1000 + 1e-6);
  return tenths === 0 ? "< 0.1\u00a0%" : `${(tenths / 10).toFixed(1)}\u00a0%`;
}

export function mib(bytes) {
  return bytes > 0 && bytes < MIB ? "< 1\u00a0MiB" : `${whole(bytes / MIB)}\u00a0MiB`;
}

export function span(seconds) {
  const rounded = Math.round(seconds);
  if (rounded < 120) return `${rounded}\u00a0s`;
  const minutes = Math.floor(rounded / 60);
  if (minutes < 120) return `${minutes}\u00a0min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}\u00a0h ${minutes % 60}\u00a0min` : `${Math.floor(hours / 24)}\u00a0days`;
}

export function pace(seconds) {
  return seconds < 10 ? `${short(seconds)}\u00a0s` : span(seconds);
}

/** Local time of day, with the date where it is not today's. */
export function clock(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  const date = today ? "" : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `;
  return date + at.toLocaleTimeString("en-GB");
}

export function moment(unixSeconds, now) {
  return `${clock(unixSeconds)}, ${span(Math.max(0, now - unixSeconds))} ago`;
}

export function count(number, one, many) {
  return `${whole(number)} ${number === 1 ? one : many}`;
}

export function unknown(reason) {
  return h("span", { class: "unknown", title: reason }, "unknown");
}

export function figure(value, reason, format = whole) {
  return isKnown(value) ? format(value) : unknown(reason);
}

/** A figure, or the word with its reason written out. */
export function explained(value, reason, format = whole) {
  return isKnown(value) ? format(value) : [unknown(reason), ", ", foreign(reason)];
}

/** A string of another program: isolated, so that its direction marks do not reorder the line. */
export function foreign(text, attributes) {
  return h("bdi", { class: "foreign", ...attributes }, text);
}
