// A unified diff, line by line; a sign tells what the colour tells.

import { h } from "./dom.js";

const LOOKS = { "+": "added", "-": "removed", "@": "place" };

/** @param {string} diff  as `diff -u` prints it */
export function diffView(diff) {
  const lines = diff.split("\n").map((line) => {
    const isHead = line.startsWith("+++ ") || line.startsWith("--- ");
    return h("span", { class: isHead ? "place" : (LOOKS[line[0]] ?? "") }, `${line}\n`);
  });
  return h("pre", { tabindex: "0", role: "region", "aria-label": "Difference" }, lines);
}
