// Where the tokens went that could have come from the cache: sums, waterfall, reasons with what helps, single requests.

import { chart } from "./charts.js";
import { fill, h } from "./dom.js";
import { bytes, compact, count, figure, percent, setting, timeTag } from "./format.js";
import { lossWords, regionWords } from "./loss_words.js";
import { empty } from "./states.js";
import { table } from "./table.js";
import { oneByOne, stepsOf, waterfallColumns, waterfallFigure } from "./waterfall.js";

const SHARES = [[0.5, "half"], [0.9, "nine tenths"]];

/** The card with the waterfall; draws again in the same place. */
export function waterfallCard() {
  const sentence = h("p");
  const place = h("div.waterfall");
  const element = h("section.card", h("h2", "From possible to actual"), sentence, place);
  const show = (losses, words) => {
    const without = noSample(losses, words);
    sentence.hidden = Boolean(without);
    if (without) {
      fill(place, without);
      return;
    }
    fill(sentence, inFigures(losses));
    const steps = stepsOf(losses);
    place.style.setProperty("--steps", steps.length);
    chart(place, {
      label: `Tokens of ${words}, from all prompt tokens of the sample to those that came from the cache`,
      figure: () => waterfallFigure(losses),
      numbers: { columns: waterfallColumns(losses), rows: stepsOf(losses, oneByOne(losses)) },
    });
  };
  return { element, place, show };
}

/** What to say where there is nothing to show; null: there is something. */
function noSample({ sampling, prompt_tokens: prompt }, words) {
  if (prompt) return null;
  if (sampling === null) return empty("What was possible is not known here", "Only an upstream server itself knows what its cache could have given. What the rules saved, or would save, is listed below.");
  if (!sampling) return empty("Nothing is sampled", "Start the gateway with --accounting-sampling 0.05, or 1 with little traffic: what was possible is counted on that share of the prompt families.");
  const advice = sampling < 1 ? " With little traffic start the gateway with --accounting-sampling 1." : "";
  return empty(`No request of ${words} is in the sample`, `${setting(sampling)} of the prompt families are sampled.${advice}`);
}

function inFigures(losses) {
  const { prompt_tokens: prompt, possible_tokens: possible, cached_tokens: cached } = losses;
  return [
    "Of ", figure("prompt_tokens", prompt), " prompt tokens of the sample ", figure("unseen_tokens", losses.unseen_tokens),
    " were new: nobody had sent that text before, or not behind the same cut of a long chat, so no cache could have it. ", figure("possible_tokens", possible),
    ` (${percent(possible / prompt)}) could have come from an unlimited cache with all safe rules on; `,
    figure("cached_tokens", cached), ` (${percent(cached / prompt)}) did. Rules that are no safe ones are not counted in it: what those in audit mode would win besides stands below. The sample is ${setting(losses.sampling)} of the prompt families.`,
  ];
}

/** What was lost by reason, each in plain words; `room` says what would have kept the blocks that were evicted. */
export function reasonsList(losses, room) {
  const rows = byReason(losses);
  if (!rows.length) return losses.prompt_tokens ? empty("Nothing was lost", "All that was possible came from the cache.") : empty("Nothing to explain yet");
  return h("ul.losses", rows.map((row) => lossItem(row, losses, room)));
}

function lossItem({ reason, tokens, regions }, { possible_tokens: possible }, room) {
  const { label, means, helps } = lossWords(reason);
  const place = (loss) => h("li", `${regionWords(loss.region)}: `, figure(`lost.${loss.index}.tokens`, loss.tokens, count));
  return h(
    "li",
    h("div", h("h3", label), h("p", `${count(tokens)} tokens, ${percent(possible ? tokens / possible : null)} of possible`), h("ul.plain.hint", regions.map(place))),
    h(
      "div.explained",
      h("p", means),
      helps ? h("p.hint", h("strong", "What helps: "), helps) : null,
      reason === "evicted" ? room : null,
    ),
  );
}

function byReason({ lost }) {
  const rows = new Map();
  lost.forEach((loss, index) => {
    if (loss.tokens === 0) return;
    const row = rows.get(loss.reason) ?? { reason: loss.reason, tokens: 0, regions: [] };
    row.tokens += loss.tokens;
    row.regions.push({ ...loss, index });
    rows.set(loss.reason, row);
  });
  return [...rows.values()].toSorted((one, other) => other.tokens - one.tokens);
}

/** By how much the pool would have to be larger to have kept half of what was evicted, and nine tenths. */
export function roomInWords({ larger_pool: sizes }, cache) {
  if (!sizes.length || !cache) return "";
  const all = sizes.at(-1).tokens;
  const inWords = ([share, name]) => {
    const { blocks } = sizes.find(({ tokens }) => tokens >= share * all);
    const memory = cache.block_bytes ? `, ${bytes(blocks * cache.block_bytes)}` : "";
    return `${name} with ${count(blocks)} blocks more${memory}`;
  };
  const parts = SHARES.map(inWords);
  return `The pool has ${count(cache.total_blocks)} blocks. Of what was evicted and asked for again since the start, it would have kept about ${parts.join(", and ")}.`;
}

/** The requests that lost most, each with the way to its explanation; `names` are those of tenants. */
export function topTable(losses, names) {
  if (!losses.top.length && losses.lost.some(({ tokens }) => tokens > 0)) {
    return empty("Not known any more", "Which requests lost most is kept until the gateway ends, and those above came before.");
  }
  if (!losses.top.length) return empty("No request lost tokens in this time");
  const columns = [
    { title: "Time", cell: ({ at }) => timeTag(at) },
    { title: "Tenant", cell: ({ tenant }) => h("span.name", { title: tenant }, names.get(tenant) ?? tenant) },
    { title: "Reason", cell: ({ reason }) => lossWords(reason).label },
    { title: "Where", cell: ({ region }) => regionWords(region) },
    { title: "Lost tokens", isNumber: true, cell: (miss) => figure(`top.${miss.index}.lost_tokens`, miss.lost_tokens, count) },
    { title: "Prompt tokens", isNumber: true, cell: (miss) => figure(`top.${miss.index}.prompt_tokens`, miss.prompt_tokens, count) },
    { title: "Why", cell: explainLink },
  ];
  return table({ caption: "Requests that lost most tokens", columns, rows: losses.top.map((miss, index) => ({ ...miss, index })) });
}

function explainLink({ completion_id: id, index }) {
  return h("a", { href: `#/requests/${encodeURIComponent(id)}`, id: `explain-${index}` }, "Explain", h("span.unseen", ` request ${id}`));
}
