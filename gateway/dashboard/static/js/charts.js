// Charts by plotly.js, which is loaded when the first chart is wanted. Each has its numbers as a table below it.

import { fill, h } from "./dom.js";
import { loading } from "./states.js";
import { table } from "./table.js";

const SOURCE = new URL("vendor/plotly.min.js", document.baseURI);
const shown = new Map();
let library = null;

/**
 * Draw a chart, or draw it again with other numbers in the same place.
 * @param {HTMLElement} place
 * @param {object} options
 * @param {string} options.label  what it shows, in a sentence for those who do not see it
 * @param {() => {data: object[], layout?: object}} options.figure  plotly's; called again when the theme changes
 * @param {{columns: import("./table.js").Column[], rows: any[]}} [options.numbers]  the same as a table
 */
export async function chart(place, { label, figure, numbers }) {
  let canvas = place.querySelector(":scope > .chart");
  if (!canvas) {
    canvas = h("div.chart", { role: "img" });
    fill(place, canvas, h("details.numbers", h("summary", "Show as a table"), h("div.unfolded")));
  }
  canvas.setAttribute("aria-label", label);
  const details = place.querySelector(":scope > details");
  details.hidden = !numbers;
  const unfold = () => {
    if (details.open && numbers) fill(details.querySelector(".unfolded"), table({ caption: label, ...numbers }));
  };
  details.ontoggle = unfold;
  unfold();
  shown.set(canvas, figure);
  await draw(canvas, figure);
}

/** A colour of the style sheet by its name, "hit" for --hit, as it is in the theme that holds: plotly knows no light-dark(). */
export function color(name) {
  const probe = h("span", { style: { color: `var(--${name})` } });
  document.body.append(probe);
  const { color: resolved } = getComputedStyle(probe);
  probe.remove();
  return resolved;
}

/** Draw all charts again, in the colours that hold now. */
export function recolor() {
  for (const [canvas, figure] of shown) {
    if (canvas.isConnected) draw(canvas, figure);
    else shown.delete(canvas);
  }
}

async function draw(canvas, figure) {
  if (!canvas.firstChild) fill(canvas, loading("Loading the chart"));
  let plotly;
  try {
    plotly = await load();
  } catch {
    fill(canvas, h("p.hint", "The chart library could not be loaded; the numbers are in the table."));
    const details = canvas.parentElement?.querySelector(":scope > details");
    if (details) details.open = true;
    return;
  }
  if (!canvas.isConnected) return;
  if (!canvas.classList.contains("js-plotly-plot")) fill(canvas);
  const { data, layout = {} } = figure();
  await plotly.react(canvas, data, merged(look(), layout), { displayModeBar: false, responsive: true });
}

function load() {
  library ??= new Promise((resolve, reject) => {
    const script = h("script", { src: SOURCE.href, async: true });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      library = null;
      script.remove();
      reject(new Error("plotly.js is not there"));
    });
    document.head.append(script);
  });
  return library;
}

function look() {
  const axis = { gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), automargin: true, fixedrange: true };
  return {
    autosize: true,
    margin: { l: 48, r: 12, t: 8, b: 32 },
    font: { family: "inherit", size: 12, color: color("text") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hovermode: "x unified",
    hoverlabel: { bgcolor: color("raised"), bordercolor: color("line"), font: { color: color("text") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    xaxis: { ...axis },
    yaxis: { ...axis, rangemode: "tozero" },
  };
}

function merged(base, extra) {
  const result = { ...base };
  for (const [key, value] of Object.entries(extra)) {
    const isPlain = value !== null && typeof value === "object" && !Array.isArray(value);
    result[key] = isPlain && base[key] !== null && typeof base[key] === "object" ? merged(base[key], value) : value;
  }
  return result;
}
