// The columns of the list of requests.

import { h } from "./dom.js";
import { count, figure, NOTHING, seconds, timeTag } from "./format.js";
import { meter } from "./meter.js";
import { cutBadge, idOf, pageOf, statusBadge } from "./request_words.js";

/** @param {Map<string, string>} names  of tenants */
export function requestColumns(names) {
  return [
    { title: "Request", cell: (row) => h("a.request-link.code", { href: pageOf(idOf(row)), id: `request-${idOf(row)}`, title: row.request_id }, idOf(row)) },
    { title: "Time", cell: (row) => timeTag(row.created_at) },
    { title: "Tenant", cell: (row) => h("span.name", { title: row.tenant }, names.get(row.tenant) ?? row.tenant) },
    { title: "Endpoint", cell: (row) => h("span.code", row.endpoint) },
    { title: "Status", cell: statusBadge },
    { title: "Prompt", isNumber: true, hint: "tokens of the prompt", cell: (row) => [cutBadge(row), figure("num_prompt_tokens", row.num_prompt_tokens, count)] },
    { title: "Cached", isNumber: true, hint: "tokens of the prompt that were taken from the cache", cell: cached },
    { title: "First token", isNumber: true, hint: "from arrival to the first token of the answer", cell: (row) => figure("first_token_seconds", row.first_token_seconds, seconds) },
    { title: "Total", isNumber: true, hint: "from arrival to the end", cell: (row) => figure("total_seconds", row.total_seconds, seconds) },
    { title: "Ended by", hint: "why the answer ended", cell: (row) => row.finish_reason ?? NOTHING },
  ];
}

function cached(row) {
  const share = row.num_prompt_tokens ? row.num_cached_tokens / row.num_prompt_tokens : null;
  return [figure("num_cached_tokens", row.num_cached_tokens, count), meter(row.num_cached_tokens === null ? null : share)];
}
