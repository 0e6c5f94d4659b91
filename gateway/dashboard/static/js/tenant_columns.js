// The columns of the table of tenants.

import { h } from "./dom.js";
import { count, figure, NOTHING, percent, timeTag } from "./format.js";
import { meter } from "./meter.js";

const LIMITS = {
  requests_per_minute: "requests a minute",
  requests_per_day: "requests a day",
  tokens_per_minute: "tokens a minute",
  tokens_per_day: "tokens a day",
  concurrency: "at the same time",
};
const NEARLY_USED = 0.9;

/** Rows that are no tenants: what blocks of the cache hold that belongs to nobody by name. */
const NOBODY = {
  public: ["Public prompts", "blocks that all tenants share"],
  other: ["Others", "blocks of whom this gateway does not know since its start"],
};

export const isTenant = (row) => !(row.tenant in NOBODY);

export const TENANT_COLUMNS = [
  { title: "Tenant", cell: name },
  { title: "Requests", isNumber: true, cell: (row) => figure("requests", row.requests, count) },
  { title: "Errors", isNumber: true, hint: "of its requests, those that failed or were refused", cell: (row) => figure("errors", row.errors, count) },
  { title: "Prompt tokens", isNumber: true, cell: (row) => figure("prompt_tokens", row.prompt_tokens, count) },
  { title: "Hit rate", isNumber: true, hint: "tokens of its prompts that were taken from the cache, of all of them", cell: hitRate },
  { title: "Output tokens", isNumber: true, cell: (row) => figure("output_tokens", row.output_tokens, count) },
  { title: "Cache", isNumber: true, hint: "blocks of the pool that hold its text", cell: cacheShare },
  { title: "Used of its limits", cell: limits },
  { title: "Last used", cell: (row) => timeTag(row.last_used_at) },
];

function name(row) {
  if (!isTenant(row)) {
    const [title, meaning] = NOBODY[row.tenant];
    return h("span.nobody", h("em", title), h("span.hint", meaning));
  }
  const label = row.name ?? row.tenant;
  return h("a.name", { href: `#/requests?${new URLSearchParams({ tenant: row.tenant })}`, id: `tenant-${row.tenant}`, title: `${label} (${row.tenant}): show its requests` }, label);
}

function hitRate(row) {
  return [figure("hit_rate", row.hit_rate, percent), meter(row.hit_rate), below("cached_tokens", row.cached_tokens, "cached")];
}

function cacheShare(row) {
  return [figure("cache_share", row.cache_share, percent), meter(row.cache_share, { color: "cached" }), below("cache_blocks", row.cache_blocks, "blocks")];
}

/** What a share is a share of, in the second line. */
function below(field, value, unit) {
  return value ? h("span.hint.below", figure(field, value, count), ` ${unit}`) : null;
}

function limits(row) {
  if (!isTenant(row)) return NOTHING;
  const set = Object.entries(row.limits ?? {}).filter(([, most]) => most !== null);
  if (!set.length) return h("span.hint", "none");
  return h("ul.limits", set.map(([limit, most]) => {
    const used = row.used?.[limit] ?? null;
    const share = used === null ? null : used / most;
    const words = [figure(`used.${limit}`, used), " of ", figure(`limits.${limit}`, most), ` ${LIMITS[limit] ?? limit}`];
    return h("li", { class: share >= NEARLY_USED ? "is-nearly-used" : "" }, h("span", words), meter(share, { color: share >= NEARLY_USED ? "error" : "accent" }));
  }));
}
