// Who uses the gateway and how much of the cache: usage in a span of time, limits as they stand now.

import { get } from "../api.js";
import { h } from "../dom.js";
import { LiveRows } from "../live_rows.js";
import { spanChoice } from "../span.js";
import { empty, shows } from "../states.js";
import { table } from "../table.js";
import { isTenant, TENANT_COLUMNS } from "../tenant_columns.js";

export const title = "Tenants";

const EVERY_MS = 10_000;

export function open(root, ctx) {
  let view = null;
  const choice = spanChoice(ctx.query, () => load());
  const note = h("p.hint");
  const place = h("div");
  root.append(
    h("div.title", h("h1", title), choice.element),
    h("section.card", { "aria-label": "Usage" }, note, place),
  );
  const load = shows(place, async () => {
    note.textContent = `Counted: requests of ${choice.span.words}, by whole hours, in tokens. Limits and shares of the cache are as they are now. A name leads to its requests.`;
    const { data } = await get("usage/tenants", { query: choice.bounds(), signal: ctx.signal });
    if (!data.some(isTenant)) return empty("No tenant yet", "prefixgate tenants create NAME makes one; whoever asks while no key exists is the tenant default.");
    view ??= liveTable();
    view.rows.show(data);
    return view.element;
  }, ctx);
  follow(ctx, load);
}

function liveTable() {
  const element = table({ caption: "Usage by tenant", columns: TENANT_COLUMNS, rows: [] });
  return { element, rows: new LiveRows(element, TENANT_COLUMNS, (row) => row.tenant) };
}

/** Load again when requests ended, now and then. */
function follow(ctx, load) {
  let seen = null;
  let loadedAt = Date.now();
  ctx.onLive(({ num_logged_requests: numLogged }) => {
    seen ??= numLogged;
    if (numLogged === seen || Date.now() - loadedAt < EVERY_MS) return;
    seen = numLogged;
    loadedAt = Date.now();
    load();
  });
}
