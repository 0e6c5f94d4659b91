// Which time a page looks at: an hour, a day, a week. The choice is in the address, so that it can be sent to somebody.

import { h } from "./dom.js";

const SPANS = [
  { name: "1h", label: "1 h", words: "the last hour", seconds: 3_600, step: 60, stepWords: "minute" },
  { name: "24h", label: "24 h", words: "the last 24 hours", seconds: 86_400, step: 900, stepWords: "15 minutes" },
  { name: "7d", label: "7 d", words: "the last 7 days", seconds: 604_800, step: 7_200, stepWords: "2 hours" },
];
const DEFAULT = SPANS[1];

/**
 * Buttons to choose a span with.
 * @param {URLSearchParams} query  of the page's address
 * @param {() => void} onChange
 * @returns {{element: HTMLElement, readonly span: {words: string, step: number, stepWords: string}, bounds: () => object}}
 */
export function spanChoice(query, onChange) {
  let span = SPANS.find(({ name }) => name === query.get("span")) ?? DEFAULT;
  const buttons = SPANS.map((choice) => h("button", { type: "button", onclick: () => choose(choice) }, choice.label));
  const mark = () => buttons.forEach((button, index) => button.setAttribute("aria-pressed", SPANS[index] === span));
  const choose = (choice) => {
    span = choice;
    mark();
    history.replaceState(null, "", `${location.hash.split("?")[0]}?span=${span.name}`);
    onChange();
  };
  mark();
  return {
    element: h("div.choice", { role: "group", "aria-label": "Time that is shown" }, buttons),
    get span() { return span; },
    bounds: () => boundsOf(span),
  };
}

/** From when until when, ended by a whole step so that the points of two loads are the same ones. */
function boundsOf({ seconds, step }) {
  const until = Math.ceil(Date.now() / 1000 / step) * step;
  const iso = (moment) => new Date(moment * 1000).toISOString();
  return { since: iso(until - seconds), until: iso(until) };
}
