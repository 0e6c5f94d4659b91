// Why a request took no more from the cache: the sentence, the place, both sides, and what would help.

import { fill, h } from "./dom.js";
import { count, figure } from "./format.js";
import { reasonAdvice, reasonMeaning, reasonWord } from "./reasons.js";
import { ownerWords } from "./regions.js";
import { pageOf } from "./request_words.js";
import { modeFor, turnOn } from "./rule_switch.js";
import { failure } from "./states.js";

const SIGNS = { "\r": "␍", "\n": "⏎\n", "\t": "⇥", "\u00a0": "⍽", "\ufeff": "⟨BOM⟩", "\u200b": "⟨ZWSP⟩" };
const LEAST_SAME = 8;
const CUT = {
  word: "Cut to fit",
  meaning: "the chat became too long, and the context policy left a part of it out from here on",
  advice: "Nothing: a cut is computed once. Where the same chat is cut every few requests, set low, a parameter of context_policy, further below high.",
};

/** @param {object} report  as GET /requests/{id}/explain tells it */
export function explanation(report) {
  const cut = report.context_cut;
  const advice = cut ? CUT.advice : reasonAdvice(report.reason);
  return [
    h("p.sentence", report.sentence),
    h(
      "dl.facts",
      fact("Reason", [h("span.badge", cut ? CUT.word : reasonWord(report.reason)), ` ${cut ? CUT.meaning : reasonMeaning(report.reason)}`]),
      fact("Tokens", [figure("num_cached_tokens", report.num_cached_tokens, count), " reused, ", figure("num_lost_tokens", report.num_lost_tokens, count), " computed, of ", figure("num_prompt_tokens", report.num_prompt_tokens, count)]),
      fact("Place", place(report)),
      fact("Nearest text", nearest(report)),
      report.evictions_ago === null ? null : fact("Evictions since", [figure("evictions_ago", report.evictions_ago, count), " blocks"]),
      advice ? fact("To do", advice) : null,
    ),
    sides(report),
    report.rule ? help(report) : null,
  ];
}

const fact = (name, value) => [h("dt", name), h("dd", value)];

function place({ block, token, diverges, region }) {
  if (token === null || token === undefined) return "not known";
  const where = region
    ? [` in ${ownerWords(region.owner)} (`, h("code", region.owner), `, tokens ${count(region.start)} to ${count(region.end - 1)})`]
    : ", at the end of the prompt or in a part that is not known any more";
  const what = diverges ? "They differ at token " : "They agree up to token ";
  return [what, figure("token", token, count), where, ". The first block that was not there as a whole is number ", figure("block", block, count), "."];
}

function nearest(report) {
  if (!report.nearest) return "a warm-up, or a request that is forgotten";
  return [h("a.code", { href: pageOf(report.nearest) }, report.nearest), " computed it"];
}

function sides(report) {
  if ("prompt_digest" in report) return digests(report);
  const { common, prompt, cached } = report;
  if (!prompt && !cached) return null;
  const same = sameEnd(prompt ?? "", cached ?? "");
  const line = (name, rest) => {
    const parts = rest ? [h("mark", visible(rest.slice(0, rest.length - same))), same ? h("span.common", visible(rest.slice(-same))) : null] : h("mark.ends", "ends here");
    return [h("dt", name), h("dd.code", h("span.common", visible(common ?? "")), parts)];
  };
  return h("figure.sides", h("figcaption.hint", "Both texts around the place; what differs is marked. White space that cannot be seen has a sign."), h("dl", line("This prompt", prompt), line("Cached", cached)));
}

/** How many characters at the end of both are the same; a few prove nothing. */
function sameEnd(one, other) {
  let length = 0;
  while (length < Math.min(one.length, other.length) - 1 && one.at(-1 - length) === other.at(-1 - length)) length += 1;
  return length < LEAST_SAME ? 0 : length;
}

function digests({ prompt_digest: prompt, cached_digest: cached }) {
  if (!prompt && !cached) return null;
  return h(
    "div.hint",
    h("p", "The texts themselves are not kept: start the gateway with --store-content to see them. Equal digests mean equal texts."),
    h("dl.facts", fact("This prompt", h("code", prompt ?? "ends here")), fact("Cached", h("code", cached ?? "ends here"))),
  );
}

function visible(text) {
  return text.replace(/[\r\n\t\u00a0\ufeff\u200b]/g, (sign) => SIGNS[sign]).replace(/ (?=⏎|$)/gm, "·");
}

function help({ rule, tenant, route }) {
  const state = { off: "is off", audit: "only watches (audit)" }[rule.mode] ?? `is ${rule.mode}`;
  const box = h("div.note.info.advice");
  const ask = async () => {
    try {
      if (await turnOn(rule.name)) fill(box, h("p", await outcome(rule.name, { tenant, route })));
    } catch (error) {
      fill(box, failure(error));
    }
  };
  const button = h("button.primary", { type: "button", id: "turn-on", onclick: ask }, "Turn on for everybody");
  fill(box, h("p", "The rule ", h("code", rule.name), ` ${state} here. It would have made both sides equal, as far as they are shown.`), button);
  return box;
}

async function outcome(name, place) {
  const mode = await modeFor(name, place);
  if (mode === "on") return `${name} is on. Requests from now on are normalized by it; what is cached in the old form is computed once more.`;
  return `${name} is on for everybody, but a narrower choice keeps it ${mode} for this tenant.`;
}
