// The newest requests as they end, and older ones as they are asked for. Knows nothing of elements.

import { get } from "./api.js";

const PAGE = 50;

export class RequestFeed {
  entries = [];
  /** Where the next older page begins; null: there is none. */
  cursor = null;
  /** Requests that came since and are not in `entries`; `hasMoreNewer`: at least so many. */
  newer = 0;
  hasMoreNewer = false;
  #filters;
  #signal;
  #numPages = 1;
  #seen = null;

  constructor(filters, signal) {
    this.#filters = filters;
    this.#signal = signal;
  }

  /** Whether the reader went back, so that the newest page is not all there is to see. */
  get isInThePast() {
    return this.#numPages > 1;
  }

  /** Whether the gateway logged requests since the newest page was read. */
  isBehind(numLogged) {
    return numLogged !== this.#seen;
  }

  /** Read the newest page and show it; with `isHeld` only count what it has more. */
  async newest({ numLogged, isHeld }) {
    const page = await this.#page(null);
    this.#seen = numLogged ?? this.#seen;
    if (isHeld) {
      const top = keyOf(this.entries[0] ?? {});
      const place = page.data.findIndex((row) => keyOf(row) === top);
      this.newer = place < 0 ? page.data.length : place;
      this.hasMoreNewer = place < 0 && page.has_more;
      return;
    }
    this.entries = page.data;
    this.cursor = page.next_cursor;
    this.newer = 0;
    this.hasMoreNewer = false;
    this.#numPages = 1;
  }

  /** Add the next older page. */
  async older() {
    const page = await this.#page(this.cursor);
    this.entries = [...this.entries, ...page.data];
    this.cursor = page.next_cursor;
    this.#numPages += 1;
  }

  #page(cursor) {
    return get("requests", { query: { ...this.#filters, limit: PAGE, cursor }, signal: this.#signal });
  }
}

/** What tells two lines of the log apart: clients may use an id twice. */
export const keyOf = ({ completion_id, request_id, created_at }) => `${completion_id} ${request_id} ${created_at}`;
