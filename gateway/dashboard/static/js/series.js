// What the overview's two charts draw, from the points of GET /series.

import { color } from "./charts.js";
import { compact, count, percent, seconds, time } from "./format.js";

/** Of a line's width: a point that stands alone has no line. */
const MARKER_SIZE = 2;

/** Seconds that are marked on the logarithmic axis. */
const TICKS = [0.001, 0.01, 0.1, 1, 10, 100].flatMap((power) => [power, 2 * power, 5 * power]);

/** A part of a whole; null where one of them is not known. */
const ratio = (part, whole) => (whole && part !== null ? part / whole : null);

const hitRate = (point) => ratio(point.cached_tokens, point.prompt_tokens);
const sampledHitRate = (point) => ratio(point.sampled_cached_tokens, point.sampled_prompt_tokens);
const maximum = (point) => ratio(point.possible_tokens, point.sampled_prompt_tokens);
const firstToken = (kind, quantile) => (point) => point.first_token_seconds[kind][quantile];

/** Hit rate over time against the maximum; the sample's own rate too, where the sample is not all of the traffic. */
export function hitRateFigure(series, sampling) {
  const lines = [
    line(series, "Hit rate", hitRate, { color: color("hit"), width: 2.5 }),
    line(series, "Maximum (sample)", maximum, { color: color("maximum"), width: 2, dash: "dash" }, "diamond"),
  ];
  if (sampling < 1) lines.push(line(series, "Hit rate (sample)", sampledHitRate, { color: color("hit"), width: 1, dash: "dot" }));
  for (const each of lines) each.hovertemplate = "%{y:.1%}";
  return { data: lines.filter(hasData), layout: { ...range(series), yaxis: { tickformat: ".0%", range: [0, 1.02] } } };
}

/** Time to the first token, of hits and of misses: the median and, thin, the 95th percentile. */
export function firstTokenFigure(series) {
  const kinds = [["hit", "Hit", "hit", "circle"], ["miss", "Miss", "computed", "diamond"]];
  const lines = kinds.flatMap(([kind, label, name, symbol]) => [
    line(series, `${label}, median`, firstToken(kind, "p50"), { color: color(name), width: 2.5 }, symbol),
    line(series, `${label}, 95 %`, firstToken(kind, "p95"), { color: color(name), width: 1, dash: "dot" }, symbol),
  ]);
  for (const each of lines) {
    each.customdata = each.y.map(seconds);
    each.hovertemplate = "%{customdata}";
  }
  return { data: lines.filter(hasData), layout: { ...range(series), yaxis: { type: "log", tickvals: TICKS, ticktext: TICKS.map(seconds) } } };
}

/** The hit rate's numbers as columns of a table. */
export const hitRateColumns = [
  { title: "Time", cell: (point) => time(point.at) },
  { title: "Requests", isNumber: true, cell: (point) => count(point.requests) },
  { title: "Prompt tokens", isNumber: true, cell: (point) => compact(point.prompt_tokens) },
  { title: "Hit rate", isNumber: true, cell: (point) => percent(hitRate(point)) },
  { title: "Of the sample", isNumber: true, cell: (point) => percent(sampledHitRate(point)) },
  { title: "Maximum", isNumber: true, cell: (point) => percent(maximum(point)) },
];

export const firstTokenColumns = [
  { title: "Time", cell: (point) => time(point.at) },
  ...["hit", "miss"].flatMap((kind) => [
    { title: `Requests, ${kind}`, isNumber: true, cell: (point) => count(point.first_token_seconds[kind].count) },
    { title: `Median, ${kind}`, isNumber: true, cell: (point) => seconds(firstToken(kind, "p50")(point)) },
    { title: `95 %, ${kind}`, isNumber: true, cell: (point) => seconds(firstToken(kind, "p95")(point)) },
  ]),
];

/** One line that breaks where there was no traffic. */
function line({ points, step }, name, read, style, symbol = "circle") {
  const x = [];
  const y = [];
  let before = null;
  for (const point of points) {
    const at = new Date(point.at).getTime();
    if (before !== null && at - before > 1.5 * step * 1000) {
      x.push(local(before + step * 1000));
      y.push(null);
    }
    x.push(local(at));
    y.push(read(point));
    before = at;
  }
  return { name, x, y, line: style, mode: "lines+markers", marker: { color: style.color, size: MARKER_SIZE * style.width, symbol } };
}

const hasData = ({ y }) => y.some((value) => value !== null);

const range = ({ since, until }) => ({ xaxis: { type: "date", range: [local(since), local(until)] } });

/** Plotly knows no time zones: what it is given is what it writes, so it is given the time of this place. */
function local(moment) {
  const date = new Date(moment);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
