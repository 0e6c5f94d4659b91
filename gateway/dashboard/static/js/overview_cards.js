// The overview's cards of this moment: the block pool, the requests by lane, the facts.

import { h } from "./dom.js";
import { compact, count, seconds } from "./format.js";
import { poolBar } from "./pool_bar.js";
import { empty } from "./states.js";
import { table } from "./table.js";

const INSTEAD = {
  engine: {
    cache: ["The engine does not answer now", "Its blocks are shown again as soon as it does."],
    requests: ["The engine does not answer now", "Its lanes are shown again as soon as it does."],
  },
  upstream: {
    cache: ["The pool is the upstream server's", "It cannot be looked into. What it reuses is known from the cached tokens that it reports with each answer: the hit rate above."],
    requests: ["The lanes are the upstream server's", "Requests queue there. Those that have ended are listed under Requests."],
  },
};

/** The block pool of this moment. */
export function cacheCard(figures, { cache, mode }) {
  const head = h("header", h("h2", "Block pool"));
  if (cache === null) return h("section.card", head, empty(...INSTEAD[mode].cache));
  head.append(h("span.hint", figures.of("cache.total_blocks", count), " blocks of ", figures.of("cache.block_size", count), " tokens"));
  return h(
    "section.card",
    head,
    poolBar(figures),
    h("p.hint", figures.of("cache.evicted_blocks", compact), " blocks were evicted since the start to make room; what an evicted block held is computed again when it comes back."),
  );
}

/** How many requests run and wait, by lane. */
export function requestsCard(figures, { requests, mode }) {
  const head = h("h2", "Requests now");
  if (requests === null) return h("section.card", head, empty(...INSTEAD[mode].requests));
  const lane = (name, hint) => ({ title: `${name[0].toUpperCase()}${name.slice(1)}`, isNumber: true, hint, cell: ({ key }) => figures.of(`requests.${key}.${name}`, count) });
  const columns = [
    { title: "Lane", cell: ({ label }) => label },
    lane("short", "expected to be brief: served first"),
    lane("long", "expected to take long: served for throughput"),
  ];
  const rows = [{ key: "running", label: "Running" }, { key: "waiting", label: "Waiting" }];
  return h("section.card", head, h("p.hint", "By lane: requests that are expected to be brief do not wait behind long ones."), table({ caption: "Requests running and waiting by lane", columns, rows }));
}

/** What serves here. */
export function factsCard(figures) {
  const fact = (name, read) => [h("dt", name), h("dd", figures.text(read))];
  return h(
    "section.card",
    h("h2", "Serving"),
    h(
      "dl.facts",
      fact("Model", ({ model }) => model ?? "not known"),
      fact("Engine", ({ engine, mode }) => engine?.state ?? (mode === "upstream" ? "an upstream server" : "not known")),
      fact("Version", ({ version }) => version),
      fact("Up for", ({ at, started_at: begun }) => seconds(Math.floor((new Date(at) - new Date(begun)) / 1000))),
    ),
  );
}
