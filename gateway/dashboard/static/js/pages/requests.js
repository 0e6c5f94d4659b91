// The log of requests as it grows, with filters that are kept in the address.

import { announce, fill, h } from "../dom.js";
import { count } from "../format.js";
import { LiveRows } from "../live_rows.js";
import { requestColumns } from "../request_columns.js";
import { keyOf, RequestFeed } from "../request_feed.js";
import { addressOf, filterForm, filtersOf } from "../request_filters.js";
import { pageOf } from "../request_words.js";
import { empty, failure, loading } from "../states.js";
import { table } from "../table.js";
import { tenantNames } from "../tenant_names.js";

export const title = "Requests";

const MIN_MS = 2_000;
const MAX_MS = 10_000;
/** With filters, reading the list again may take this part of the time: where few fit, the gateway looks at all of the log. */
const SHARE = 0.01;

export function open(root, ctx) {
  root.append(h("div.title", h("h1", title), finder(ctx)));
  const form = h("section.card", { "aria-label": "Filters" }, loading());
  const list = h("section.card.request-list", { "aria-label": "List of requests" }, loading());
  root.append(form, list);
  begin(form, list, ctx).catch((error) => {
    if (error.name !== "AbortError") throw error;
  });
}

async function begin(form, list, ctx) {
  const names = await tenantNames(ctx);
  let view = null;
  const show = (filters) => {
    view?.leave();
    view = new ListView(list, { filters, names, ctx, reset });
  };
  // The address changes without an event, so that the page is not built anew under the reader's hands.
  const change = (filters) => {
    history.pushState(null, "", addressOf(filters));
    show(filters);
  };
  const reset = () => {
    change({});
    fill(form, filterForm({}, names, { change, reset }));
  };
  fill(form, filterForm(filtersOf(ctx.query), names, { change, reset }));
  show(filtersOf(ctx.query));
  ctx.onLive((overview) => view.follow(overview));
}

function finder({ visit }) {
  const input = h("input", { id: "find-request", name: "id", required: true, placeholder: "chatcmpl-… or x-request-id", autocomplete: "off", spellcheck: "false" });
  const onsubmit = (event) => {
    event.preventDefault();
    const id = input.value.trim();
    if (id) visit(pageOf(id));
  };
  return h("form.finder", { role: "search", "aria-label": "Find a request", onsubmit }, h("label", { for: input.id }, "Find by id"), input, h("button", { type: "submit" }, "Open"));
}

class ListView {
  #leaving = new AbortController();
  #feed;
  #isPaused = false;
  #isBusy = false;
  #dueAt = 0;
  #problem = null;
  #rows = null;
  #place;
  #pause = h("button", { type: "button", id: "pause", onclick: () => this.#togglePause() }, "Pause");
  #newer = h("button.primary", { type: "button", id: "show-newer", hidden: true, onclick: () => this.#showNewer() });
  #older = h("button", { type: "button", id: "show-older", onclick: () => this.#showOlder() }, "Show older");
  #foot = h("div.actions", { hidden: true }, this.#older);
  #note = h("p.hint", { id: "list-note" });
  #body = h("div", loading());
  #options;

  constructor(place, options) {
    this.#options = options;
    this.#place = place;
    const signal = AbortSignal.any([options.ctx.signal, this.#leaving.signal]);
    this.#feed = new RequestFeed(options.filters, signal);
    fill(place, h("header", this.#note, h("div.actions", this.#newer, this.#pause)), this.#body, this.#foot);
    this.#load();
  }

  leave() {
    this.#leaving.abort();
  }

  /** The gateway's numbers came: read the list again if it grew. */
  follow({ num_logged_requests: numLogged }) {
    if (this.#isBusy || performance.now() < this.#dueAt) return;
    const isHeld = this.#isHeld;
    if (this.#feed.isBehind(numLogged) || (this.#feed.newer > 0 && !isHeld)) this.#load({ numLogged, isHeld });
  }

  get #isFiltered() {
    return Object.keys(this.#options.filters).length > 0;
  }

  get #isHeld() {
    if (!this.#feed.entries.length) return this.#isPaused;
    const isScrolled = this.#place.getBoundingClientRect().top < 0;
    return this.#isPaused || this.#feed.isInThePast || isScrolled || Boolean(this.#rows?.hasFocus);
  }

  #load({ numLogged = this.#options.ctx.live.overview?.num_logged_requests, isHeld = false } = {}) {
    return this.#attempt(() => this.#feed.newest({ numLogged, isHeld }));
  }

  async #attempt(read) {
    this.#isBusy = true;
    const begun = performance.now();
    this.#place.setAttribute("aria-busy", "true");
    try {
      await read();
      this.#problem = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#problem = error;
    } finally {
      this.#isBusy = false;
      const now = performance.now();
      const pause = this.#isFiltered ? (now - begun) / SHARE : 0;
      this.#dueAt = now + Math.min(MAX_MS, Math.max(MIN_MS, pause));
    }
    this.#place.removeAttribute("aria-busy");
    this.#draw();
  }

  #togglePause() {
    this.#isPaused = !this.#isPaused;
    this.#pause.textContent = this.#isPaused ? "Go on" : "Pause";
    announce(this.#isPaused ? "Paused" : "Live");
    if (this.#isPaused) this.#draw();
    else this.#load();
  }

  async #showNewer() {
    await this.#load();
    this.#place.scrollIntoView({ block: "nearest" });
    this.#body.querySelector(".scroller")?.focus({ preventScroll: true });
  }

  async #showOlder() {
    const before = this.#feed.entries.length;
    await this.#attempt(() => this.#feed.older());
    announce(`${this.#feed.entries.length - before} older requests are shown`);
  }

  #draw() {
    const { entries, newer, hasMoreNewer, cursor } = this.#feed;
    this.#newer.hidden = newer === 0;
    this.#newer.textContent = `${count(newer)}${hasMoreNewer ? " or more" : ""} newer: show`;
    this.#foot.hidden = cursor === null;
    this.#note.textContent = this.#words();
    if (!entries.length) {
      this.#rows = null;
      fill(this.#body, this.#problem ? failure(this.#problem, () => this.#load()) : this.#nothing());
      return;
    }
    if (!this.#rows) {
      const columns = requestColumns(this.#options.names);
      fill(this.#body, table({ caption: "Requests, newest first", columns, rows: [] }));
      this.#rows = new LiveRows(this.#body, columns, keyOf);
    }
    this.#rows.show(entries);
  }

  #words() {
    const { entries, isInThePast } = this.#feed;
    if (!entries.length) return this.#isPaused ? "Paused." : "";
    if (this.#problem) return `Not brought up to date: ${this.#problem.message}.`;
    const shown = `${count(entries.length)} shown, newest first.`;
    if (this.#isPaused) return `${shown} Paused.`;
    return isInThePast ? `${shown} New ones are counted.` : `${shown} New ones appear by themselves.`;
  }

  #nothing() {
    if (this.#isFiltered) {
      const reset = h("button", { type: "button", onclick: this.#options.reset }, "Reset the filters");
      return empty("No request fits these filters", "Only what the log still has is found.", reset);
    }
    return empty("No request yet", "Send a chat to this gateway, and it is here when it has ended.");
  }
}
