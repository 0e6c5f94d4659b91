// What the log says of one request.

import { h } from "./dom.js";
import { count, figure, NOTHING, percent, seconds, timeTag } from "./format.js";
import { reasonWord } from "./reasons.js";
import { statusBadge } from "./request_words.js";

const NOT_REACHED = "it did not get so far";

/**
 * @param {object} request  as GET /requests/{id} tells it
 * @param {Map<string, string>} names  of tenants
 */
export function requestFacts(request, names) {
  const { num_prompt_tokens: prompt, num_cached_tokens: cached, num_output_tokens: output } = request;
  const share = prompt ? cached / prompt : null;
  const asked = [
    fact("Came", timeTag(request.created_at)),
    fact("Tenant", h("a", { href: `#/requests?${new URLSearchParams({ tenant: request.tenant })}` }, names.get(request.tenant) ?? request.tenant)),
    request.key ? fact("API key", h("code", request.key)) : null,
    request.prompt ? fact("Registered prompt", h("a", { href: `#/prompts/${encodeURIComponent(request.prompt)}` }, request.prompt)) : null,
    fact("Endpoint", [h("code", request.endpoint), request.is_stream ? " as a stream" : ""]),
    fact("Model", h("code", request.model || NOTHING)),
    fact("Ids", [h("code", request.request_id), request.completion_id ? [" · ", h("code", request.completion_id)] : null]),
  ];
  const outcome = [
    fact("Status", [statusBadge(request), request.finish_reason ? ` ended by ${request.finish_reason}` : ""]),
    fact("Prompt", prompt === null ? NOT_REACHED : [figure("num_prompt_tokens", prompt, count), " tokens, of which ", figure("num_cached_tokens", cached, count), ` cached (${percent(share)})`]),
    fact("Answer", output === null ? NOT_REACHED : [figure("num_output_tokens", output, count), " tokens"]),
    fact("First token", request.first_token_seconds === null ? NOT_REACHED : [figure("first_token_seconds", request.first_token_seconds, seconds), " from arrival"]),
    fact("In all", figure("total_seconds", request.total_seconds, seconds)),
    fact("Blocks by reason", reasons(request.reasons)),
    fact("Rules that changed it", request.rules?.length ? request.rules.map((rule, index) => [index ? ", " : "", h("code", rule)]) : "none"),
  ];
  return h("div.columns", h("dl.facts", asked), h("dl.facts", outcome));
}

const fact = (name, value) => [h("dt", name), h("dd", value)];

function reasons(byReason) {
  const entries = Object.entries(byReason ?? {});
  if (!entries.length) return NOTHING;
  return entries.map(([reason, number], index) => [index ? ", " : "", `${reasonWord(reason)} `, figure(`reasons.${reason}`, number, count)]);
}
