// The block pool as one bar. What is in shared use lies at its left end, so that it can be compared with the cap's line.

import { h } from "./dom.js";
import { count, percent } from "./format.js";

const STATES = [
  { name: "active_shared_blocks", label: "Active, shared", color: "shared", hint: "read by two requests or more" },
  { name: "cached_blocks", label: "Cached, idle", color: "cached", hint: "kept for the next request; given up when room is needed" },
  { name: "active_private_blocks", label: "Active, private", color: "computed", hint: "of one request" },
  { name: "free_blocks", label: "Free", color: "free", hint: "hold nothing" },
];

/** @param {import("./figures.js").Figures} figures  of the overview, whose `cache` is not null */
export function poolBar(figures) {
  const segments = STATES.map(({ label, color }) => h("span.pool-state", { title: label, style: { background: `var(--${color})` } }));
  const pinned = h("span.pinned", { title: "Pinned" });
  const cap = h("span.cap", { title: "Most blocks in shared use" });
  const bar = h("div.pool", { role: "img" }, segments, pinned, cap);
  const capLabel = h("span.cap-label", "Cap on sharing");
  figures.also(({ cache }) => {
    const share = (blocks) => `${(100 * blocks) / cache.total_blocks}%`;
    STATES.forEach(({ name }, index) => { segments[index].style.width = share(cache[name]); });
    pinned.style.left = share(Math.max(0, cache.shared_blocks - cache.pinned_blocks));
    pinned.style.width = share(cache.pinned_blocks);
    cap.style.left = share(cache.shared_blocks_limit);
    const isFarRight = cache.shared_blocks_limit > cache.total_blocks / 2;
    capLabel.style.marginLeft = isFarRight ? "0" : share(cache.shared_blocks_limit);
    capLabel.style.marginRight = isFarRight ? share(cache.total_blocks - cache.shared_blocks_limit) : "0";
    capLabel.classList.toggle("to-the-left", isFarRight);
    bar.setAttribute("aria-label", inWords(cache));
  });
  return h("div.pool-frame", capLabel, bar, legend(figures));
}

function legend(figures) {
  const of = (name) => figures.of(`cache.${name}`, count);
  const share = (name) => figures.text(({ cache }) => ` (${percent(cache[name] / cache.total_blocks)})`);
  const item = (swatch, label, hint, ...numbers) => h("li", { title: hint }, swatch, `${label}: `, h("span", numbers));
  const square = (color) => h("span.swatch", { "aria-hidden": "true", style: { background: `var(--${color})` } });
  return h(
    "ul.legend",
    STATES.map(({ name, label, color, hint }) => item(square(color), label, hint, of(name), share(name))),
    item(h("span.swatch.pinned-swatch", { "aria-hidden": "true" }), "Pinned", "never evicted; of the blocks in shared use", of("pinned_blocks"), ", at most ", of("pinned_blocks_limit")),
    item(h("span.swatch.cap-swatch", { "aria-hidden": "true" }), "In shared use", "pinned, or read by two requests or more", of("shared_blocks"), ", at most ", of("shared_blocks_limit")),
  );
}

function inWords(cache) {
  const states = STATES.map(({ name, label }) => `${count(cache[name])} ${label.toLowerCase()}`).join("; ");
  return (
    `Block pool of ${count(cache.total_blocks)} blocks. ${states}. ${count(cache.pinned_blocks)} of them are pinned. ` +
    `${count(cache.shared_blocks)} are in shared use, of at most ${count(cache.shared_blocks_limit)}.`
  );
}
