// A unified diff as it is printed: the signs stay, so the colours only help.

import { h } from "./dom.js";

/** @param {string} text  a unified diff */
export function diffView(text, { label = "Differences" } = {}) {
  const lines = text.replace(/\n$/, "").split("\n");
  return h("pre", { tabindex: "0", "aria-label": label }, lines.map((line) => [h("span", { class: classOf(line) }, line), "\n"]));
}

function classOf(line) {
  if (/^(\+\+\+|---|@@)/.test(line)) return "place";
  if (line.startsWith("+")) return "added";
  return line.startsWith("-") ? "removed" : "";
}
