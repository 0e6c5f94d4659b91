// Registered prompts: what is kept warm, who uses it, what it saved, and traffic that is nearly it.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { ago, bytes, compact, count, figure } from "../format.js";
import { register } from "../prompt_actions.js";
import { keptBadge, warmBadge } from "../prompt_words.js";
import { empty, shows } from "../states.js";
import { table } from "../table.js";
import { tenantNames } from "../tenant_names.js";

export const title = "Prompts";

const RELOAD_MS = 5_000;

export function open(root, { signal, live, onEnded, query, visit }) {
  const hasRetired = query.get("retired") === "1";
  const place = h("div");
  const add = h("button.primary", { type: "button", id: "register", onclick: async () => (await register()) && reload() }, "Register a prompt");
  const retired = h("input", {
    type: "checkbox", id: "retired", onchange: (event) => visit(`/prompts${event.target.checked ? "?retired=1" : ""}`),
  });
  retired.checked = hasRetired;
  fill(
    root,
    h("div.title", h("h1", title), add),
    h("p.hint", "A registered prompt is kept in the cache and known by its content or its name. Sums are of the last 24 hours, in tokens."),
    h("section.card", h("div.field.inline", retired, h("label", { for: "retired" }, "Show retired ones, too")), place),
  );
  let names = null;
  const load = async () => {
    try {
      if (live.overview?.mode !== "upstream") return await list(hasRetired, (names ??= tenantNames({ signal })), signal);
    } catch (error) {
      if (error.code !== "unknown_path") throw error;
    }
    add.hidden = true;
    return empty("No prompts here", "They are registered with an engine of the gateway's own, and kept in its cache; this gateway is in front of upstream servers.");
  };
  const reload = shows(place, load, { signal });
  onEnded(reload, RELOAD_MS);
}

async function list(hasRetired, tenants, signal) {
  const query = { retired: hasRetired ? "true" : null, limit: 1000 };
  const [page, names] = await Promise.all([get("usage/prompts", { query, signal }), tenants]);
  if (!page.data.length) {
    return empty(
      "No prompt is registered.",
      "Register the system prompt that most of your traffic begins with: it is computed ahead of use, and can be pinned in the cache.",
    );
  }
  const columns = [
    { title: "Name", cell: (row) => h("a", { href: `#/prompts/${encodeURIComponent(row.id)}`, id: `prompt-${row.id}` }, row.name) },
    { title: "For", cell: (row) => h("span.name", { title: row.scope }, names.get(row.scope) ?? row.scope) },
    { title: "Version", isNumber: true, cell: (row) => (row.active ? String(row.active_version) : "none") },
    { title: "Tokens", isNumber: true, cell: (row) => figure("active.num_tokens", row.active?.num_tokens, count) },
    { title: "KV cache", isNumber: true, cell: (row) => bytes(row.active?.num_bytes) },
    { title: "State", cell: (row) => [warmBadge(row), " ", keptBadge(row.active)] },
    { title: "Requests", isNumber: true, cell: (row) => figure("num_requests", row.num_requests, count) },
    { title: "Hits", isNumber: true, hint: "requests for which something was cached", cell: (row) => figure("num_hits", row.num_hits, count) },
    { title: "Saved", isNumber: true, hint: "tokens of the prompt that were not computed again", cell: (row) => figure("num_saved_tokens", row.num_saved_tokens, compact) },
    {
      title: "Drift", isNumber: true, hint: "requests that are nearly this prompt, since the gateway's start",
      cell: (row) => figure("num_drifted_requests", row.num_drifted_requests, count),
    },
    { title: "Last used", cell: (row) => ago(row.last_used_at) },
  ];
  return table({ caption: "Registered prompts", columns, rows: page.data });
}
