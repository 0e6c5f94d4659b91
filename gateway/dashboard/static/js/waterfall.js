// From all prompt tokens of the sample down to those that came from the cache, as a waterfall.

import { color } from "./charts.js";
import { compact, count, percent } from "./format.js";
import { lossWords, regionWords } from "./loss_words.js";

const MOST_STEPS = 8;
const SMALL = 0.02;
const ROOM_FOR_TEXT = 1.15;

/** The steps: a level, or what is taken from it (below 0: what is added). */
export function stepsOf(losses, lost = grouped(losses)) {
  return [
    { label: "All prompt tokens", tokens: losses.prompt_tokens, isLevel: true },
    { label: "New text", tokens: losses.unseen_tokens },
    { label: "Possible", tokens: losses.possible_tokens, isLevel: true },
    ...lost,
    { label: "From the cache", tokens: losses.cached_tokens, isLevel: true },
  ];
}

/** Each loss by itself, the largest first. */
export const oneByOne = ({ lost }) =>
  lost
    .filter(({ tokens }) => tokens !== 0)
    .toSorted((one, other) => Math.abs(other.tokens) - Math.abs(one.tokens))
    .map(({ reason, region, tokens }) => ({ label: `${lossWords(reason).label}, ${regionWords(region)}`, tokens }));

/** The largest losses one by one, the small ones together. */
function grouped(losses) {
  const all = oneByOne(losses);
  const small = all.filter(({ tokens }, index) => index >= MOST_STEPS || Math.abs(tokens) < SMALL * losses.possible_tokens);
  if (small.length < 2) return all;
  const rest = small.reduce((sum, { tokens }) => sum + tokens, 0);
  return [...all.slice(0, -small.length), { label: `Other (${small.length})`, tokens: rest }];
}

/** Three traces, for one has a single colour for all that falls, and new text is not lost. */
export function waterfallFigure(losses) {
  const steps = stepsOf(losses);
  const data = [
    trace(steps.slice(0, 2), { level: "maximum", falls: "free" }),
    trace(steps.slice(2, -1), { level: "maximum", falls: "computed" }),
    trace(steps.slice(-1), { level: "hit", falls: "computed" }),
  ];
  return {
    data,
    layout: {
      showlegend: false,
      hovermode: "closest",
      waterfallmode: "overlay",
      waterfallgap: 0.3,
      margin: { l: 8, r: 8, t: 8, b: 32 },
      xaxis: { range: [losses.prompt_tokens * (1 - ROOM_FOR_TEXT) / 2, losses.prompt_tokens * ROOM_FOR_TEXT], tickformat: "~s" },
      yaxis: { autorange: "reversed", rangemode: "normal", type: "category", categoryarray: steps.map(lines) },
    },
  };
}

function trace(steps, { level, falls }) {
  const looks = (name) => ({ marker: { color: color(name) } });
  return {
    type: "waterfall",
    orientation: "h",
    y: steps.map(lines),
    x: steps.map(({ tokens, isLevel }) => (isLevel ? tokens : -tokens)),
    measure: steps.map(({ isLevel }) => (isLevel ? "absolute" : "relative")),
    totals: looks(level),
    decreasing: looks(falls),
    increasing: looks("copied"),
    connector: { line: { color: color("line"), width: 1 } },
    text: steps.map(signed),
    textposition: "outside",
    cliponaxis: false,
    hovertemplate: steps.map(({ label, tokens }) => `${label}: ${count(tokens)} tokens<extra></extra>`),
  };
}

/** A label on two lines, so that the bars keep their room on a narrow page. */
const lines = ({ label }) => label.replace(", ", ",<br>");

const signed = ({ tokens, isLevel }) => (isLevel ? compact(tokens) : `${tokens < 0 ? "+" : "−"} ${compact(Math.abs(tokens))}`);

/** The same as columns of a table. */
export const waterfallColumns = (losses) => [
  { title: "Step", cell: ({ label }) => label },
  { title: "Tokens", isNumber: true, cell: ({ tokens, isLevel }) => (isLevel ? count(tokens) : count(-tokens)) },
  { title: "Of all", isNumber: true, cell: ({ tokens }) => percent(losses.prompt_tokens ? tokens / losses.prompt_tokens : null) },
];
