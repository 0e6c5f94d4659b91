// Rows of a table that come and go while somebody reads: those that stay the same keep their elements, and so focus and scroll.

import { tableRow } from "./table.js";

export class LiveRows {
  #body;
  #columns;
  #keyOf;
  #rows = new Map();

  /**
   * @param {HTMLElement} place  made by `table`
   * @param {import("./table.js").Column[]} columns
   * @param {(row: any) => string} keyOf
   */
  constructor(place, columns, keyOf) {
    this.#body = place.querySelector("tbody");
    this.#columns = columns;
    this.#keyOf = keyOf;
  }

  /** Whether the keyboard is in one of the rows. */
  get hasFocus() {
    return this.#body.contains(document.activeElement);
  }

  /** Show these rows in this order, whatever was there. */
  show(entries) {
    const focused = this.hasFocus ? document.activeElement.id : "";
    const before = this.#rows;
    this.#rows = new Map(entries.map((entry) => [this.#keyOf(entry), this.#row(entry, before)]));
    for (const [key, { element }] of before) {
      if (this.#rows.get(key)?.element !== element) element.remove();
    }
    let next = this.#body.firstChild;
    for (const { element } of this.#rows.values()) {
      if (element === next) next = next.nextSibling;
      else this.#body.insertBefore(element, next);
    }
    if (focused && !this.hasFocus) document.getElementById(focused)?.focus();
  }

  #row(entry, before) {
    const known = before.get(this.#keyOf(entry));
    const text = JSON.stringify(entry);
    return known?.text === text ? known : { text, element: tableRow(this.#columns, entry) };
  }
}
