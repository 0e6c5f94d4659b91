// Why the hit rate is not higher: where the tokens were lost, in which requests, and which rules would win them back.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { reasonsList, roomInWords, topTable, waterfallCard } from "../losses.js";
import { tenantNames } from "../tenant_names.js";
import { rulesCard } from "../rule_list.js";
import { spanChoice } from "../span.js";
import { failure, loading } from "../states.js";

export const title = "Why not higher";

const REDRAW_MS = 30_000;

export function open(root, context) {
  const { signal } = context;
  const waterfall = waterfallCard();
  const reasons = h("div", loading());
  const top = h("div", loading());
  const room = h("p.hint");
  const rules = rulesCard(context);
  const choice = spanChoice(context.query, () => load({ isOther: true }));
  const details = h("section.card", h("h2", "What was lost, and what helps"), reasons);
  const tops = h("section.card", h("h2", "Requests that lost most"), h("p.hint", "Of the sample: what each could have taken from the cache and did not."), top);
  const tenants = tenantNames({ signal });
  let latest = null;
  let shown = null;

  async function load({ isOther = false } = {}) {
    const places = [waterfall.place, reasons, top];
    if (isOther) {
      shown = null;
      for (const place of places) fill(place, loading());
    }
    const { span } = choice;
    try {
      const [losses, names] = await Promise.all([get("losses", { query: choice.bounds(), signal }), tenants]);
      if (span === choice.span) draw(losses, names);
    } catch (error) {
      if (error.name === "AbortError" || span !== choice.span || shown !== null) return;
      details.hidden = tops.hidden = true;
      fill(waterfall.place, failure(error, () => load({ isOther: true })));
    }
  }

  function draw(losses, names) {
    const now = JSON.stringify({ ...losses, since: null, until: null });
    if (now === shown) return;
    shown = now;
    details.hidden = tops.hidden = !losses.prompt_tokens;
    waterfall.show(losses, choice.span.words);
    latest = losses;
    room.textContent = roomInWords(losses, context.live.overview?.cache);
    fill(reasons, reasonsList(losses, room));
    fill(top, topTable(losses, names));
  }

  root.append(
    h("div.title", h("h1", title), choice.element),
    waterfall.element,
    details,
    rules.element,
    tops,
  );
  load({ isOther: true });
  context.onLive(({ cache }) => {
    if (latest) room.textContent = roomInWords(latest, cache);
  });
  context.onEnded(() => {
    load();
    rules.load();
  }, REDRAW_MS);
}
