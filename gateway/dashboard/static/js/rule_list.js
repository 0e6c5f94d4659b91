// The normalizer's rules by what they do now, what they save, and the buttons that turn them on, to audit, and off.

import { get } from "./api.js";
import { setContextPolicy } from "./context_policy.js";
import { fill, h } from "./dom.js";
import { compact, count, figure, percent } from "./format.js";
import { paramsFor, switchRule } from "./rule_switch.js";
import { ruleWords } from "./rule_words.js";
import { empty, failure, loading } from "./states.js";

const EVERY = "*";
const LABELS = { on: "Turn on", audit: "Audit", off: "Turn off" };
const BUTTONS = { on: ["off"], audit: ["on", "off"], off: ["audit", "on"] };

/**
 * A card that loads again when it is told to. A rule stays in the list where it was when the page was opened, with its
 * new mode beside it: what one has just pressed does not jump away.
 */
export function rulesCard({ signal, live }) {
  const lists = { audit: h("div", loading()), on: h("div"), off: h("div") };
  const summaries = { on: h("summary", TITLES.on), off: h("summary", TITLES.off) };
  const homes = new Map();
  let shown = null;

  async function load() {
    try {
      const [rules, savings] = await Promise.all([get("rules", { signal }), get("savings", { signal }).catch(withoutTokenizer)]);
      const now = JSON.stringify([rules, savings.rules, savings.sampled_prompt_tokens, live.overview?.context]);
      if (now !== shown) show(rules, savings);
      shown = now;
    } catch (error) {
      if (error.name === "AbortError") return;
      if (shown === null) fill(lists.audit, failure(error, load));
    }
  }

  function show({ data, choices }, savings) {
    const rows = data.map((rule) => rowOf(rule, choices, savings));
    for (const { name, mode } of rows) if (!homes.has(name)) homes.set(name, mode);
    for (const home of Object.keys(lists)) {
      const mine = rows.filter(({ name }) => homes.get(name) === home);
      fill(lists[home], mine.length ? h("ul.rules", mine.toSorted(bySavings).map((row) => item(row, savings))) : empty(...EMPTY[home]));
      if (summaries[home]) summaries[home].textContent = `${TITLES[home]} (${mine.length})`;
    }
  }

  function item(row, savings) {
    const badges = [row.class === "safe" ? [] : row.class.replace("_", "-"), row.mode].flat();
    return h(
      "li",
      h(
        "div.explained",
        h("div.title", h("h4", row.name), h("span", badges.map((word) => [" ", h("span.badge", { class: word === "on" ? "good" : "" }, word)]))),
        [ruleWords(row.name), ...othersInWords(row), ...(isOfContext(row) ? paramsInWords(row.params) : [])].map((words) => h("p.hint", words)),
      ),
      h("div", isOfContext(row) ? leftOutInWords(row, live.overview?.context) : savedInWords(row, savings)),
      h("div.row-actions", BUTTONS[row.mode].map((mode) => button(row, mode)), isOfContext(row) && row.mode !== "off" ? button(row, row.mode, "Parameters") : null),
    );
  }

  function button(row, mode, label = LABELS[mode]) {
    const looks = mode === "on" && row.mode === "audit" ? "primary" : "";
    return h("button", { type: "button", class: looks, id: `${mode}-${row.name}`, onclick: () => change(row, mode) }, label, h("span.unseen", ` ${row.name}`));
  }

  async function change(row, mode) {
    const others = othersInWords(row);
    const ask = () => (isOfContext(row) ? setContextPolicy(row, mode, others) : switchRule(row.name, mode, [...others, ...paramsInWords(paramsFor(row, mode))]));
    if (!(await ask())) return;
    await load();
    document.getElementById(`${BUTTONS[mode][0]}-${row.name}`)?.focus();
  }

  const element = h(
    "section.card",
    h("h2", "Rules"),
    h("p.hint", "Rules bring prompts that mean the same to one form. Figures are tokens of the sample since the gateway's start; those of a rule in audit mode are what it would have saved."),
    h("h3", TITLES.audit),
    lists.audit,
    h("details.numbers", summaries.off, h("div.unfolded-rules", lists.off)),
    h("details.numbers", summaries.on, h("div.unfolded-rules", lists.on)),
  );
  load();
  return { element, load };
}

const TITLES = { audit: "In audit mode", off: "Off", on: "On" };
/** In front of an upstream server, without its tokenizer, nothing is counted, and the rules can still be switched. */
function withoutTokenizer(error) {
  if (error.status !== 404) throw error;
  return { rules: null };
}

const EMPTY = {
  audit: ["No rule is in audit mode", "Put one that is off into audit mode to see what it would save; nothing that is sent changes."],
  off: ["No rule is off"],
  on: ["No rule is on"],
};

/** A rule with its savings in the list where it stands, and the narrower choices that were made for it. */
function rowOf(rule, choices, savings) {
  const counted = rule.mode === "on" ? "on" : "audit";
  const index = savings.rules?.findIndex((row) => row.rule === rule.name && row.mode === counted) ?? -1;
  const isHere = ({ rule: name }) => name === rule.name || (name === EVERY && rule.default === "on");
  const others = choices.filter((choice) => isHere(choice) && (choice.tenant !== EVERY || choice.route !== EVERY));
  return { ...rule, index, saved: savings.rules?.[index] ?? null, others };
}

const bySavings = (one, other) => (other.saved?.net_tokens ?? 0) - (one.saved?.net_tokens ?? 0);

/** The context policy saves nothing: it makes chats fit, and its parameters are chosen with its mode. */
const isOfContext = (rule) => rule.class === "context";

function leftOutInWords({ mode }, context) {
  const audited = mode === "audit" ? h("p.hint", "What it would leave out is told with each request, and in sums by /metrics.") : null;
  if (!context) return audited ?? h("p.hint", "Where it is off, chats that are too long for the model are refused.");
  const of = (name, format) => figure(`context.${name}`, context[name], format);
  return [h("p", "Left out ", of("cleared_tokens", compact), " tokens"), h("p.hint", "of ", of("edited_requests", count), " requests, in ", of("cuts", count), " cuts"), audited];
}

function savedInWords({ mode, saved, index }, savings) {
  if (savings.rules === null) return h("p.hint", "Not counted: the gateway needs --tokenizer for it.");
  if (saved === null) return h("p.hint", "Has not fired since the start.");
  const of = (name, format) => figure(`rules.${index}.${name}`, saved[name], format);
  const fired = ["in ", of("fired_requests", count), " requests"];
  if (saved.net_tokens === null) return [h("p", "Not in the sample yet"), h("p.hint", "fired ", fired)];
  const { sampled_prompt_tokens: sampled } = savings;
  const share = sampled ? ` (${percent(saved.net_tokens / sampled)})` : "";
  const all = saved.extrapolated_net_tokens === null ? [] : ["about ", of("extrapolated_net_tokens", compact), " of all traffic; "];
  return [h("p", mode === "on" ? "Saved " : "Would save ", of("net_tokens", count), ` tokens${share}`), h("p.hint", all, "fired ", fired)];
}

function othersInWords({ others }) {
  if (!others.length) return [];
  const place = ({ tenant, route, mode }) => `${mode} for ${tenant === EVERY ? "every tenant" : tenant} at ${route === EVERY ? "every route" : route}`;
  return [`Chosen more narrowly, which goes before: ${others.map(place).join("; ")}.`];
}

const paramsInWords = (params) => (Object.keys(params).length ? [`Parameters: ${JSON.stringify(params)}.`] : []);
