// Why a block of a prompt was, or was not, taken from the cache: words for the reasons of the engine, and what helps.

/** What became of a block: the three ways, and which reasons lead to each. */
const COPIED = new Set(["copied", "share_cap"]);

const WORDS = {
  hit: ["Reused", "taken from the cache in place", null],
  copied: ["Copied", "its first tokens were copied from a cached block", null],
  share_cap: ["Copied for the cap", "copied whole, because max_shared_ratio of the pool was in common use", "A higher --max-shared-ratio, or a larger pool."],
  not_ready: ["Being computed", "another request was computing the same at that moment", null],
  evicted: ["Evicted", "it was cached and had made room for others", "A larger pool, or a pin or a priority for a registered prompt."],
  below_min_reuse: ["Too little to copy", "too few tokens agree with a cached block for a copy to pay", null],
  diverged: ["Differs", "the text differs from everything that is cached there", "Look at the place and at both sides below. A rule that is named mends it; else change the client."],
  cold_restart: ["Lost at a restart", "it was cached before the engine's process restarted", "See why it restarted. Registered prompts are warmed again by themselves."],
  never_cached: ["New", "nobody had sent this text before", null],
  disabled: ["Cache not used", "the prefix cache is off, or log probabilities of the prompt were asked for", "Switch on enable_prefix_caching of the engine."],
  other_scope: ["Another tenant's", "only another tenant had sent it, and tenants share nothing", "Where all may share it, register it as a public prompt."],
};

/** A short name: "Evicted". */
export const reasonWord = (reason) => WORDS[reason]?.[0] ?? reason;

/** What it means, as the end of a sentence. */
export const reasonMeaning = (reason) => WORDS[reason]?.[1] ?? reason;

/** What an operator can do about it; null: nothing is wrong. */
export const reasonAdvice = (reason) => WORDS[reason]?.[2] ?? null;

/** What became of a block with this reason: `hit`, `copied`, `computed`, or `answer` where it has none. */
export function kindOf(reason) {
  if (reason === null) return "answer";
  if (reason === "hit") return "hit";
  return COPIED.has(reason) ? "copied" : "computed";
}
