// Tables: a caption for those who listen, numbers to the right, rows that can be opened by keyboard, wide ones scroll.

import { h } from "./dom.js";

/**
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: any) => (Node|string|Array)} cell
 * @property {boolean} [isNumber]
 * @property {string} [hint]  what the column means, for who points at its title
 */

/**
 * @param {object} options
 * @param {string} options.caption
 * @param {Column[]} options.columns
 * @param {any[]} options.rows
 * @param {boolean} [options.showsCaption]
 * @returns {HTMLElement}
 */
export function table({ caption, columns, rows, showsCaption = false }) {
  return h(
    "div.scroller",
    { tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      h("caption", { class: showsCaption ? "" : "unseen" }, caption),
      h("thead", h("tr", columns.map((column) => h("th", { scope: "col", class: align(column), title: column.hint }, column.title)))),
      h("tbody", rows.map((row) => tableRow(columns, row))),
    ),
  );
}

/** One row, for tables whose rows come and go. */
export function tableRow(columns, row) {
  return h("tr", columns.map((column, index) =>
    index === 0 ? h("th", { scope: "row", class: align(column) }, column.cell(row)) : h("td", { class: align(column) }, column.cell(row)),
  ));
}

const align = (column) => (column.isNumber ? "number" : "");
