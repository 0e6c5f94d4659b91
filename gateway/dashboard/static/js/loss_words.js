// Why tokens were computed although they could have come from the cache, and where they stand, in plain words.

import { reasonWord } from "./reasons.js";

/** A label only where a loss is called something else than a block's reason. */
const LOSSES = {
  rule_off: {
    label: "Rule not on",
    means: "A safe rule that is off, or only audited, would have made this text equal to what is cached.",
    helps: "Turn the rule on: it is in the list below with what it would save.",
  },
  diverged: {
    means: "The prompt begins like a cached one and then differs; all behind the first different token is computed again.",
    helps: "Explain a request to see the first different token. Move what changes (dates, ids, names) behind what stays, or let relocate_volatile do it.",
  },
  evicted: {
    means: "It had been cached, and its blocks were given up to make room for other prompts.",
    helps: "A larger pool (--kv-cache-memory or --num-blocks), or register the prompt and pin it.",
  },
  cold_restart: {
    means: "It was cached before the engine restarted; a new process begins empty.",
    helps: "Register prompts that many requests begin with: they are computed at the start, before requests come.",
  },
  below_min_reuse: {
    means: "Fewer tokens of the last block are equal than are worth a copy, or there was no room for one.",
    helps: "Usually nothing: it is less than a block a request. A smaller --block-size makes it less.",
  },
  not_ready: {
    means: "Another request was computing the same text at that moment, and to wait for it would have taken longer.",
    helps: "Register the shared beginning, so that it is computed before the requests come.",
  },
  share_cap: {
    label: "Cap on sharing",
    means: "As much of the pool as max_shared_ratio allows was in common use.",
    helps: "Raise max_shared_ratio, or enlarge the pool.",
  },
  never_cached: {
    label: "Not known to the engine",
    means: "Nothing in the engine begins like this prompt: it was evicted so long ago that no trace is left, or was never sent in this form.",
    helps: "Where rules are not on, turn them on: they give one text one form. Else a larger pool.",
  },
  disabled: {
    means: "The prefix cache is off, or the request asked for log probabilities of its prompt, which have to be computed.",
    helps: "Turn the prefix cache on, or do without prompt log probabilities.",
  },
  other_scope: {
    means: "Only another tenant has this text in the cache, and tenants share nothing of their own.",
    helps: "Register what all may share as a public prompt.",
  },
  unexplained: {
    label: "Not explained",
    means: "The engine says that nothing was missing: engine and maximum were counted in different caches.",
    helps: "Nothing. A large share says that the sample is too small: raise --accounting-sampling.",
  },
};

const REGIONS = {
  system: "system text",
  tools: "tool list",
  user: "users' messages",
  assistant: "earlier answers",
  tool: "tool results",
  template: "chat template",
  answer: "answers",
  unknown: "place not known",
};

/** A short name, what it means and what helps; a reason that has no words yet is shown by its name. */
export const lossWords = (reason) => ({ label: reasonWord(reason), means: "", helps: "", ...LOSSES[reason] });

export const regionWords = (region) => REGIONS[region] ?? region;
