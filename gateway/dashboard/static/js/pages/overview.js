// How the cache does now and did lately: what is wrong, the hit rate against its maximum, the block pool, the requests.

import { get, Unreachable } from "../api.js";
import { chart } from "../charts.js";
import { fill, h } from "../dom.js";
import { Figures } from "../figures.js";
import { cacheCard, factsCard, requestsCard } from "../overview_cards.js";
import { problemList } from "../problems.js";
import { firstTokenColumns, firstTokenFigure, hitRateColumns, hitRateFigure } from "../series.js";
import { spanChoice } from "../span.js";
import { empty, failure, loading } from "../states.js";
import { maximumInWords, tiles } from "../tiles.js";

export const title = "Overview";

const REDRAW_MS = 30_000;
const SILENCE = { severity: "error", code: "no_answer", text: "The gateway does not answer: what stands here is old.", view: null };

export function open(root, context) {
  const top = h("div.page", loading());
  const bottom = h("div.page");
  const problems = problemList();
  const charts = chartsOf(context);
  let figures = new Figures();
  let shape = null;
  root.append(h("h1", title), top, charts.element, bottom);

  context.onState((state) => {
    if (state !== "stale") return;
    if (shape) problems.show([SILENCE]);
    else fill(top, failure(new Unreachable(), () => context.live.refresh()));
  });
  context.onLive((overview) => {
    if (shape !== shapeOf(overview)) {
      shape = shapeOf(overview);
      figures = new Figures();
      fill(top, h("section.card", h("h2", "What is wrong"), problems.element), tiles(figures, overview));
      fill(bottom, cacheCard(figures, overview), h("div.columns", requestsCard(figures, overview), factsCard(figures)));
    }
    problems.show(overview.problems);
    figures.show(overview);
    charts.follow(overview);
  });
}

/** What decides which cards there are; it changes only when another gateway answers at the same address, or the context policy is turned on. */
const shapeOf = ({ mode, cache, requests, saved, context }) => [mode, cache === null, requests === null, saved.device, Boolean(context)].join();

function chartsOf({ query, signal }) {
  const hitRate = chartCard("Hit rate");
  const firstToken = chartCard("Time to the first token");
  const choice = spanChoice(query, () => load({ isOther: true }));
  let loadedAt = 0;
  let seen = null;
  let overview = null;

  async function load({ isOther = false } = {}) {
    if (isOther) for (const { place } of [hitRate, firstToken]) fill(place, loading());
    loadedAt = Date.now();
    const { span } = choice;
    try {
      const series = await get("series", { query: { ...choice.bounds(), step: span.step }, signal });
      if (span === choice.span) draw(series);
    } catch (error) {
      if (error.name === "AbortError" || span !== choice.span) return;
      for (const { place } of [hitRate, firstToken]) {
        if (!place.querySelector(".chart")) fill(place, failure(error, () => load({ isOther: true })));
      }
    }
  }

  function draw(series) {
    const { words, stepWords } = choice.span;
    hitRate.hint.textContent = `Share of the prompt tokens that came from the cache, each ${stepWords}. ${maximumInWords(overview)}`;
    firstToken.hint.textContent = `From a request's arrival to its first token, each ${stepWords}. Hit: at least half of the prompt was cached.`;
    const rows = series.points.toReversed();
    const drawn = (card, hasData, options) => {
      if (series.points.some(hasData)) chart(card.place, options);
      else fill(card.place, empty(`No answer in ${words}`, "The next one begins the line."));
    };
    drawn(hitRate, (point) => point.prompt_tokens, {
      label: `Hit rate over ${words} against its maximum`,
      figure: () => hitRateFigure(series, overview?.maximum?.sampling ?? 0),
      numbers: { columns: hitRateColumns, rows },
    });
    drawn(firstToken, ({ first_token_seconds: { hit, miss } }) => hit.count + miss.count, {
      label: `Time to the first token over ${words}, hits against misses`,
      figure: () => firstTokenFigure(series),
      numbers: { columns: firstTokenColumns, rows },
    });
  }

  /** Load again when requests have ended since, but not too often. */
  function follow(now) {
    const isFirst = overview === null;
    overview = now;
    const hasNews = now.num_logged_requests !== seen || Date.now() - loadedAt > choice.span.step * 1000;
    if (!isFirst && !(hasNews && Date.now() - loadedAt > REDRAW_MS)) return;
    seen = now.num_logged_requests;
    load();
  }

  const head = h("div.title", h("h2", "Over time"), choice.element);
  return { element: h("section.page", head, h("div.columns", hitRate.element, firstToken.element)), follow };
}

function chartCard(name) {
  const place = h("div", loading());
  const hint = h("p.hint");
  return { element: h("section.card", h("h3", name), hint, place), hint, place };
}
