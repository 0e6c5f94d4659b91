// One registered prompt: its text, its versions, who used it, and how traffic differs from it.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { ago, bytes, count, figure, percent, timeTag } from "../format.js";
import * as actions from "../prompt_actions.js";
import { keptBadge, keptSentence, tokensInBlocks, warmBadge } from "../prompt_words.js";
import { empty, shows } from "../states.js";
import { table } from "../table.js";
import { tenantNames } from "../tenant_names.js";

export const title = () => "Prompt";

const RELOAD_MS = 5_000;

export function open(root, { params: [id], signal, onEnded }) {
  const path = `prompts/${encodeURIComponent(id)}`;
  const [head, usage, drift, versions, text] = [0, 1, 2, 3, 4].map(() => h("div"));
  const card = (name, hint, place) => h("section.card", h("header", h("h2", name), hint ? h("p.hint", hint) : null), place);
  fill(
    root,
    h("p", h("a", { href: "#/prompts" }, "All prompts")),
    h("div.columns", h("section.card", head), card("Use", "In the last 24 hours, from the request log.", usage)),
    card("Drift", "Requests that are nearly this prompt since the gateway's start: what differs keeps them from its blocks.", drift),
    card("Versions", null, versions),
    card("Text of the version in force", null, text),
  );
  const tenants = tenantNames({ signal });
  const load = async () => {
    const [prompt, names] = await Promise.all([get(path, { signal }), tenants]);
    fill(versions, versionTable(prompt, reload));
    shows(text, () => wholeText(path, prompt, signal), { signal });
    return facts(prompt, names, reload);
  };
  const reload = shows(head, load, { signal });
  const reloadUsage = shows(usage, async () => used(await get(`${path}/statistics`, { signal })), { signal });
  const reloadDrift = shows(drift, async () => drifted(await get(`${path}/drift`, { signal }), await tenants), { signal });
  onEnded(() => {
    reloadUsage();
    reloadDrift();
  }, RELOAD_MS);
}

function facts(prompt, names, reload) {
  const version = prompt.versions.find((entry) => entry.version === prompt.active_version);
  const does = (action) => async () => { if (await action()) reload(); };
  const button = (name, action, look = "") => h("button", { type: "button", class: look, onclick: does(action) }, name);
  const buttons = prompt.retired_at
    ? []
    : [
        button("New version", () => actions.addVersion(prompt)),
        button("Warm", () => actions.warm(prompt)),
        version ? button("Keep…", () => actions.keep(prompt, version)) : null,
        button("Retire", () => actions.retire(prompt), "danger"),
      ];
  const rows = [
    ["State", [warmBadge(prompt), " ", keptBadge(version), prompt.warm?.detail ? ` ${prompt.warm.detail}` : ""]],
    ["For", names.get(prompt.scope) ?? prompt.scope],
    ["Version in force", prompt.active_version ? String(prompt.active_version) : "none"],
    ...(version ? [["Size", `${tokensInBlocks(version)}, ${bytes(version.num_bytes)} of KV cache`], ["Kept", keptSentence(version)]] : []),
    ["Id", h("code", prompt.id)],
    ["Registered", timeTag(prompt.created_at)],
    ...(prompt.retired_at ? [["Retired", timeTag(prompt.retired_at)]] : []),
  ];
  return [
    h("h1", prompt.name),
    h("dl.facts", rows.map(([name, value]) => [h("dt", name), h("dd", value)])),
    h("div.actions", { style: { justifyContent: "flex-start" } }, buttons),
  ];
}

function used(sums) {
  if (!sums.num_requests) return empty("Nobody used it in this time.", "Requests count that name it, or whose system prompt is its text.");
  const rows = [
    ["Requests", figure("num_requests", sums.num_requests, count)],
    ["Of all requests", figure("share_of_requests", sums.share_of_requests, percent)],
    ["With something cached", figure("num_hits", sums.num_hits, count)],
    ["Cached tokens of them", figure("num_cached_tokens", sums.num_cached_tokens, count)],
    ["Last used", ago(sums.last_used_at)],
  ];
  return h("dl.facts", rows.map(([name, value]) => [h("dt", name), h("dd", value)]));
}

function drifted({ variants }, names) {
  if (!variants.length) return empty("No request differs from it.", "Prompts with parts that vary are not watched.");
  const columns = [
    { title: "Where", cell: ({ place }) => (place.character === null ? place.region : `${place.region}, character ${count(place.character)}`) },
    { title: "Registered", cell: ({ place }) => h("code", shown(place.expected)) },
    { title: "Came", cell: ({ place }) => h("code", shown(place.got)) },
    { title: "Repaired", cell: (row) => (row.repaired ? h("span.badge.good", "by the rules") : h("span.badge.warn", "no: it misses")) },
    { title: "Requests", isNumber: true, cell: (row) => figure("count", row.count, count) },
    { title: "Tenant", cell: (row) => names.get(row.tenant) ?? row.tenant },
    { title: "Last seen", cell: (row) => ago(row.last_seen) },
  ];
  return table({ caption: "How requests differ", columns, rows: variants });
}

/** White space that makes the difference has to be seen. */
const shown = (text) => JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"') || "(nothing)";

function versionTable(prompt, reload) {
  const canChange = !prompt.retired_at;
  const buttons = (version) => [
    version.version === prompt.active_version
      ? h("span.badge.good", "in force")
      : [
          h("button", { type: "button", onclick: () => actions.compare(prompt, version.version, prompt.active_version) }, "Compare"),
          canChange ? [" ", h("button", { type: "button", onclick: async () => (await actions.activate(prompt, version.version)) && reload() }, "Put to use")] : null,
        ],
  ];
  const columns = [
    { title: "Version", cell: (version) => String(version.version) },
    { title: "Made", cell: (version) => timeTag(version.created_at) },
    { title: "Tokens", isNumber: true, cell: (version) => count(version.num_tokens) },
    { title: "Blocks", isNumber: true, cell: (version) => count(version.num_blocks) },
    { title: "Kept", cell: keptSentence },
    { title: "Rules of its own", cell: (version) => Object.entries(version.rules).map(([rule, mode]) => `${rule}: ${mode}`).join(", ") || "none" },
    { title: "Actions", cell: buttons },
  ];
  return table({ caption: "Versions", columns, rows: [...prompt.versions].reverse() });
}

async function wholeText(path, prompt, signal) {
  if (!prompt.active_version) return empty("No version is in force.", null);
  const version = await get(`${path}/versions/${prompt.active_version}`, { signal });
  const { messages = [], tools = [] } = version.canonical;
  const shownContent = (content) => (typeof content === "string" ? content : JSON.stringify(content, null, 2));
  return [
    messages.map((message) => [h("h3", message.role), h("pre", { tabindex: "0" }, shownContent(message.content))]),
    tools.length ? [h("h3", `${tools.length} tools`), h("pre", { tabindex: "0" }, JSON.stringify(tools, null, 2))] : null,
  ];
}
