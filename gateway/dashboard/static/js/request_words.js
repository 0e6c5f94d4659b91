// How a request went, in words.

import { h } from "./dom.js";
import { count } from "./format.js";

const WORDS = { 200: "done", 429: "limited", 499: "client left", 503: "not now" };

/** A status as a word and a badge, with the error's code. */
export function statusBadge({ status, error }) {
  const kind = status < 400 ? "good" : status < 500 ? "warn" : "bad";
  return [h(`span.badge.${kind}`, `${status} ${wordOf(status)}`), error ? h("span.error-code.code", error) : null];
}

function wordOf(status) {
  return WORDS[status] ?? (status < 400 ? "done" : status < 500 ? "refused" : "failed");
}

/** A mark where the context policy left something out. */
export function cutBadge({ context_management: context }) {
  if (!context?.applied_edits.length || context.mode === "audit") return null;
  return [h("span.badge", { title: `The context policy left out ${count(context.original_input_tokens - context.input_tokens)} tokens` }, "cut"), " "];
}

/** The name by which the engine and the log know it best: of its completion, else its own. */
export const idOf = (request) => request.completion_id ?? request.request_id;

/** The page of a request. */
export const pageOf = (id) => `#/requests/${encodeURIComponent(id)}`;
