// Where a request's time went, as one bar from its arrival to its end and the same in words.

import { h } from "./dom.js";
import { count, figure, percent, seconds } from "./format.js";
import { table } from "./table.js";

/** The bar and its table. @param {object} request  as GET /requests/{id} tells it */
export function timeline(request) {
  const parts = partsOf(request);
  const sum = parts.reduce((all, part) => all + part.seconds, 0);
  const total = request.total_seconds;
  const words = parts.map((part) => `${part.name} ${seconds(part.seconds)}`).join(", ");
  const bar = h(
    "div.timeline",
    { role: "img", "aria-label": `${seconds(total)} in all: ${words}` },
    parts.map((part) => h("div.segment", { style: { flexGrow: sum > 0 ? (100 * part.seconds) / sum : 1, background: `var(--${part.color})` }, title: `${part.name}: ${seconds(part.seconds)}` }, h("span", `${part.name} ${seconds(part.seconds)}`))),
  );
  return [bar, table({ caption: "Parts of the time", columns: columns(total), rows: parts })];
}

function columns(total) {
  return [
    { title: "Part", cell: (part) => h("span.keyed", h("span.swatch", { style: { background: `var(--${part.color})` }, "aria-hidden": "true" }), part.name) },
    { title: "Time", isNumber: true, cell: (part) => (part.field ? figure(part.field, part.seconds, seconds) : seconds(part.seconds)) },
    { title: "Share", isNumber: true, cell: (part) => (total > 0 ? percent(part.seconds / total) : "") },
    { title: "What it is", cell: (part) => part.meaning },
  ];
}

/** Parts that are known, in their order; what is not known on its own is in the part behind it. */
function partsOf(request) {
  const { prepare_seconds: prepare, queue_seconds: queue, first_token_seconds: first, total_seconds: total } = request;
  const before = (prepare ?? 0) + (queue ?? 0);
  const parts = [];
  if (isKnown(prepare)) parts.push({ name: "Gateway", seconds: prepare, field: "prepare_seconds", color: "maximum", meaning: "read, checked, normalized, rendered and tokenized, until the engine had it" });
  if (isKnown(queue)) parts.push({ name: "Queue", seconds: queue, field: "queue_seconds", color: "info", meaning: "waiting for room in the engine" });
  if (isKnown(first)) {
    parts.push({ name: "Prefill", seconds: atLeast0(first - before), color: "computed", meaning: prefillMeaning(request) });
    parts.push({ name: "Decode", seconds: atLeast0(total - first), color: "shared", meaning: decodeMeaning(request, total - first) });
  } else {
    parts.push({ name: "Rest", seconds: atLeast0(total - before), color: "copied", meaning: "until it ended without a token" });
  }
  return parts;
}

function prefillMeaning({ num_prompt_tokens: prompt, num_cached_tokens: cached }) {
  if (!isKnown(prompt) || !isKnown(cached)) return "until the first token of the answer";
  return `computing the ${count(prompt - cached)} tokens of the prompt that were not cached, until the first token of the answer`;
}

function decodeMeaning({ num_output_tokens: output }, duration) {
  if (!isKnown(output)) return "the rest of the answer";
  const rate = duration > 0 && output > 1 ? `, ${((output - 1) / duration).toFixed(1)} a second` : "";
  return `the rest of the answer, ${count(output)} tokens in all${rate}`;
}

const isKnown = (value) => value !== null && value !== undefined;
const atLeast0 = (value) => Math.max(0, value);
