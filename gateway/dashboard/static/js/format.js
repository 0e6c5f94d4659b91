// How numbers and times are written, in one place. No data is a dash, never 0.

import { h } from "./dom.js";

export const NOTHING = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false });

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** 12,345 */
export const count = (value) => (isKnown(value) ? whole.format(value) : NOTHING);

/** 12.3K */
export const compact = (value) => (isKnown(value) ? (Math.abs(value) < 10_000 ? whole.format(value) : short.format(value)) : NOTHING);

/** A share of 1 as 87.5 % */
export const percent = (value) => (isKnown(value) ? `${(value * 100).toFixed(1)} %` : NOTHING);

/** A share as it was set: 5 %, 0.25 % */
export const setting = (value) => (isKnown(value) ? `${Number((value * 100).toPrecision(3))} %` : NOTHING);

/** 12 ms, 1.25 s, 3 min 20 s, 2 h 5 min */
export function seconds(value) {
  if (!isKnown(value)) return NOTHING;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 0.001) return "< 1 ms";
  if (size < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (size < 9.995) return `${value.toFixed(2)} s`;
  if (size < 59.5) return `${Math.round(value)} s`;
  const minutes = Math.floor((size + 0.5) / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor((size + 0.5) % 60)} s`;
  return minutes < 48 * 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

/** 24 KiB, 1.5 GiB */
export function bytes(value) {
  if (!isKnown(value)) return NOTHING;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
  const size = value / 1024 ** power;
  return `${size.toFixed(power && size < 10 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** 14:03:22 today, else with its date */
export function time(iso) {
  if (!iso) return NOTHING;
  const moment = new Date(iso);
  return moment.toDateString() === new Date().toDateString() ? clock.format(moment) : full.format(moment);
}

/** An element with the time in words, and all of it for whoever points at it. */
export const timeTag = (iso) => (iso ? h("time", { datetime: iso, title: full.format(new Date(iso)) }, time(iso)) : NOTHING);

/** 5 s ago */
export function ago(iso) {
  if (!iso) return "never";
  const passed = (Date.now() - new Date(iso).getTime()) / 1000;
  if (passed < 2) return "just now";
  return `${passed < 60 ? `${Math.floor(passed)} s` : seconds(passed)} ago`;
}

/**
 * A number of the API on the page: as people read it, with the exact value beside it for who points at it, and for tests.
 * @param {string} name  where it stands in the API's answer, "tokens.prompt"
 */
export function figure(name, value, format = compact) {
  const element = h("span.figure", { "data-figure": name });
  write(element, value, format);
  return element;
}

/** Put another value into a figure; what is equal is not touched, so a selection in it stays. */
export function write(element, value, format = compact) {
  const exact = isKnown(value) ? String(value) : "";
  if (element.dataset.value === exact) return;
  element.dataset.value = exact;
  element.title = exact || "no data";
  element.textContent = format(value);
}
