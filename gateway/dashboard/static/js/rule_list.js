// The normalizer's rules by what they do now, what they save, and the buttons that turn them on, to audit, and off.

import { get, send } from "./api.js";
import { confirm } from "./dialog.js";
import { announce, fill, h } from "./dom.js";
import { compact, count, figure, percent } from "./format.js";
import { ruleWords } from "./rule_words.js";
import { empty, failure, loading } from "./states.js";
import { table } from "./table.js";

const EVERY = "*";
const ACTIONS = {
  on: { label: "Turn on", asks: (name) => `Turn on ${name}?`, said: "on", tells: "Prompts that it changes are cached in their new form, so their next requests are computed once more." },
  audit: { label: "Audit", asks: (name) => `Audit ${name}?`, said: "in audit mode", tells: "Nothing that is sent to the model changes; what it would save is counted on the sample." },
  off: { label: "Turn off", asks: (name) => `Turn off ${name}?`, said: "off", tells: "It no longer runs, and nothing is counted for it." },
};
const BUTTONS = { on: ["off"], audit: ["on", "off"], off: ["audit", "on"] };

/**
 * A card that loads again when it is told to. A rule stays in the list where it was when the page was opened, with its
 * new mode beside it: what one has just pressed does not jump away.
 */
export function rulesCard({ signal }) {
  const lists = { audit: h("div", loading()), on: h("div"), off: h("div") };
  const summaries = { on: h("summary", LISTS.on.title), off: h("summary", LISTS.off.title) };
  const homes = new Map();
  let shown = null;

  async function load() {
    try {
      const [rules, savings] = await Promise.all([get("rules", { signal }), get("savings", { signal })]);
      const now = JSON.stringify([rules, savings.rules, savings.sampled_prompt_tokens]);
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
      fill(lists[home], mine.length ? listOf(home, mine, savings) : empty(...EMPTY[home]));
      if (summaries[home]) summaries[home].textContent = `${LISTS[home].title} (${mine.length})`;
    }
  }

  function listOf(home, rows, savings) {
    const columns = [
      { title: "Rule", cell: nameCell },
      { title: LISTS[home].saves, isNumber: true, hint: "tokens of the sample since the gateway's start", cell: (row) => savedCell(row, savings) },
      { title: "Requests", isNumber: true, hint: "in which it changed something, or would have", cell: firedCell },
      { title: "Now", cell: (row) => h("span.badge", { class: row.mode === "on" ? "good" : "" }, row.mode) },
      { title: "Change", cell: (row) => h("div.row-actions", BUTTONS[row.mode].map((mode) => button(row, mode))) },
    ];
    return table({ caption: LISTS[home].title, columns, rows: rows.toSorted((one, other) => (other.saved?.net_tokens ?? 0) - (one.saved?.net_tokens ?? 0)) });
  }

  function button(row, mode) {
    const looks = mode === "on" ? "primary" : "";
    return h("button", { type: "button", class: looks, id: `${mode}-${row.name}`, onclick: () => change(row, mode) }, ACTIONS[mode].label, h("span.unseen", ` ${row.name}`));
  }

  async function change(row, mode) {
    const action = ACTIONS[mode];
    const params = paramsFor(row, mode);
    const text = [ruleWords(row.name), "It will hold for every tenant and route, from the next request on.", action.tells, ...othersInWords(row), ...paramsInWords(params)];
    const run = () => send("PUT", `rules/${encodeURIComponent(row.name)}`, { mode, params });
    const isDone = await confirm({ title: action.asks(row.name), text: text.filter(Boolean).join(" "), action: action.label, run });
    if (!isDone) return;
    await load();
    announce(`${row.name} is ${action.said} for every tenant and route`);
    document.getElementById(`${BUTTONS[mode][0]}-${row.name}`)?.focus();
  }

  const element = h(
    "section.card",
    h("h2", "Rules"),
    h("p.hint", "Rules bring prompts that mean the same to one form. Figures are tokens of the sample since the gateway's start; those of a rule in audit mode are what it would have saved."),
    h("h3", LISTS.audit.title),
    lists.audit,
    h("details.numbers", summaries.off, h("div.unfolded-rules", lists.off)),
    h("details.numbers", summaries.on, h("div.unfolded-rules", lists.on)),
  );
  load();
  return { element, load };
}

const LISTS = {
  audit: { title: "In audit mode", saves: "Would save" },
  off: { title: "Off", saves: "Would save" },
  on: { title: "On", saves: "Saved" },
};
const EMPTY = {
  audit: ["No rule is in audit mode", "Put one that is off into audit mode to see what it would save; nothing that is sent changes."],
  off: ["No rule is off"],
  on: ["No rule is on"],
};

/** A rule with its savings in the list where it stands, and the narrower choices that were made for it. */
function rowOf(rule, choices, savings) {
  const counted = rule.mode === "on" ? "on" : "audit";
  const index = savings.rules.findIndex((row) => row.rule === rule.name && row.mode === counted);
  const isHere = ({ rule: name }) => name === rule.name || (name === EVERY && rule.default === "on");
  const others = choices.filter((choice) => isHere(choice) && (choice.tenant !== EVERY || choice.route !== EVERY));
  return { ...rule, index, saved: savings.rules[index] ?? null, others };
}

/** What was chosen stays; what was only assumed while it audited has to be said. */
function paramsFor({ params, audit_params: assumed }, mode) {
  return Object.keys(params).length || mode !== "on" ? params : (assumed ?? {});
}

function nameCell(row) {
  const others = othersInWords(row).map((text) => h("p.hint", text));
  return h("div.explained", h("code", row.name), " ", row.class === "safe" ? null : h("span.badge", row.class.replace("_", "-")), h("p.hint", ruleWords(row.name)), others);
}

function savedCell({ saved, index }, savings) {
  if (saved === null) return h("span.hint", "has not fired");
  if (saved.net_tokens === null) return h("span.hint", "not in the sample yet");
  const share = savings.sampled_prompt_tokens ? ` (${percent(saved.net_tokens / savings.sampled_prompt_tokens)})` : "";
  const all = saved.extrapolated_net_tokens === null ? null : h("p.hint", "of all traffic about ", figure(`rules.${index}.extrapolated_net_tokens`, saved.extrapolated_net_tokens, compact));
  return h("div", figure(`rules.${index}.net_tokens`, saved.net_tokens, count), share, all);
}

const firedCell = ({ saved, index }) => (saved === null ? count(0) : figure(`rules.${index}.fired_requests`, saved.fired_requests, count));

function othersInWords({ others }) {
  if (!others.length) return [];
  const place = ({ tenant, route, mode }) => `${mode} for ${tenant === EVERY ? "every tenant" : tenant} at ${route === EVERY ? "every route" : route}`;
  return [`Chosen more narrowly, which goes before: ${others.map(place).join("; ")}.`];
}

const paramsInWords = (params) => (Object.keys(params).length ? [`Parameters: ${JSON.stringify(params)}.`] : []);
