// A small bar beside a number: how much of something is used. The number says it too; the bar is for the eye.

import { h } from "./dom.js";

/** A bar filled to `share` of 1; nothing where it is not known. */
export function meter(share, { color = "hit" } = {}) {
  if (share === null || share === undefined || Number.isNaN(share)) return null;
  const width = `${(Math.min(1, Math.max(0, share)) * 100).toFixed(1)}%`;
  return h("span.meter", { "aria-hidden": "true" }, h("span", { style: { width, background: `var(--${color})` } }));
}
