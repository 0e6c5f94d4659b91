// How a registered prompt stands, in words.

import { h } from "./dom.js";
import { count, NOTHING, timeTag } from "./format.js";

const WARM = {
  warm: ["good", "warm"],
  waiting: ["warn", "waiting"],
  not_in_time: ["warn", "not warm yet"],
  failed: ["bad", "failed"],
};

/** How warm a prompt is. */
export function warmBadge(prompt) {
  if (prompt.retired_at) return h("span.badge", "retired");
  const [look, word] = WARM[prompt.warm?.status] ?? ["", "unknown"];
  return h("span.badge", { class: look, title: prompt.warm?.detail }, word);
}

/** How it is kept: pinned, with a priority, or like all else. */
export function keptBadge(version) {
  const kept = version?.retention;
  if (!kept) return null;
  if (kept.pin) return h("span.badge.good", "pinned");
  return kept.priority ? h("span.badge", `priority ${kept.priority}`) : null;
}

/** The same in a sentence. */
export function keptSentence(version) {
  const kept = version?.retention;
  if (!kept) return NOTHING;
  const how = kept.pin ? "pinned: never evicted" : kept.priority ? `priority ${kept.priority}: evicted after what has less` : "evicted like all else";
  return kept.expires_at ? [how, ", until ", timeTag(kept.expires_at)] : how;
}

export const tokensInBlocks = (version) => `${count(version.num_tokens)} tokens, ${count(version.num_blocks)} full blocks`;
