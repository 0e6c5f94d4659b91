// The overview's tiles, one number each, and what the maximum means.

import { h } from "./dom.js";
import { compact, percent, seconds, setting } from "./format.js";

/** One of long chats stands there only where the context policy is, or was, on. @param {import("./figures.js").Figures} figures */
export function tiles(figures, overview) {
  const of = (path, format) => figures.of(path, format);
  return h(
    "div.tiles",
    tile("Hit rate since the start", of("tokens.hit_rate", percent), [
      h("span", of("tokens.cached", compact), " of ", of("tokens.prompt", compact), " prompt tokens came from the cache. "),
      possible(figures),
    ]),
    tile("Tokens saved", of("saved.tokens", compact), "prompt tokens that were not computed again, since the start"),
    tile(`${deviceOf(overview)} time saved`, of("saved.seconds", seconds), figures.text(savedInWords)),
    tile(
      "Time to the first token, median",
      [of("first_token_seconds.hit.p50", seconds), h("span.against", "against"), of("first_token_seconds.miss.p50", seconds)],
      [of("first_token_seconds.hit.count", compact), " hits (at least half of the prompt cached) against ", of("first_token_seconds.miss.count", compact), " misses"],
    ),
    overview.context
      ? tile("Left out of long chats", of("context.cleared_tokens", compact), [
          "tokens, of ", of("context.edited_requests", compact), " of ", of("context.requests", compact), " requests, in ", of("context.cuts", compact), " cuts: between two the beginning stays cached",
        ])
      : null,
  );
}

/** What the maximum is and how much of the traffic it was counted on; what to set where there is none. */
export function maximumInWords(overview) {
  if (overview?.mode === "upstream") return "There is no maximum: what an upstream server's cache could have given is not known here.";
  const { sampling, prompt_tokens: sampled, max_hit_rate: known, evicted_blocks: evicted } = overview?.maximum ?? {};
  if (!sampling) return "There is no maximum, for nothing is sampled: start the gateway with --accounting-sampling 0.05, or 1 with little traffic.";
  const share = setting(sampling);
  if (known === null || known === undefined) {
    const advice = sampling < 1 ? " With little traffic start it with --accounting-sampling 1." : "";
    return `There is no maximum yet: the sample is ${share} of the prompt families, and none has come into it.${advice}`;
  }
  return (
    "Maximum: what an unlimited pool with all safe rules on would have reused of the same prompts; counted on a sample of " +
    `${share} of the prompt families, ${compact(sampled)} of ${compact(overview.tokens.prompt)} tokens since the start.` +
    (evicted ? ` More may have been possible: that pool had to give up ${compact(evicted)} blocks.` : "")
  );
}

function possible(figures) {
  const known = h("span", "Of the sample ", figures.of("maximum.hit_rate", percent), ", where ", figures.of("maximum.max_hit_rate", percent), " was possible: ", h("a", { href: "#/why" }, "see what was lost"));
  const unknown = h("span", "Nothing is in the sample yet.");
  figures.also(({ maximum, mode }) => {
    known.hidden = typeof maximum?.max_hit_rate !== "number";
    unknown.hidden = !known.hidden || mode === "upstream";
  });
  return [known, unknown];
}

const DEVICES = { cpu: "CPU", cuda: "GPU" };

const deviceOf = ({ saved }) => DEVICES[saved.device] ?? "Computing";

function savedInWords(overview) {
  if (overview.saved.seconds !== null) return `what the saved tokens would have taken to compute, at the speed of those that were computed`;
  return overview.mode === "upstream" ? "not known: the upstream server does not say what its tokens cost" : "not known until the engine has computed a prompt";
}

const tile = (label, value, hint) => h("div.tile", h("span.label", label), h("span.value", value), h("span.hint", hint));
