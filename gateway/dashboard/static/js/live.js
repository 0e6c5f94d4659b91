// The overview as it comes: by server-sent events, by polling where those do not get through, and it says how old it is.

import { address, get, Unreachable } from "./api.js";

const POLL_MS = 5_000;
const RETRY_MS = 60_000;
const SILENCE_MS = 7_000;
const STALE_MS = 12_000;

/**
 * Emits "overview" (detail: the answer of GET /overview) and "state" when `state` changes:
 * `connecting`, `live`, `polling`, `stale` (the last numbers are old), `paused` (nobody looks).
 */
export class Live extends EventTarget {
  state = "connecting";
  overview = null;
  #source = null;
  #receivedAt = 0;
  #pollAt = 0;
  #retryAt = 0;
  #isPolling = false;
  #timer = null;
  #begunAt = 0;

  start() {
    if (this.#timer !== null) return;
    this.#begunAt = Date.now();
    this.#listen();
    this.#timer = setInterval(() => this.#watch(), 1_000);
    document.addEventListener("visibilitychange", this.#onVisibility);
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = null;
    document.removeEventListener("visibilitychange", this.#onVisibility);
    this.#hangUp();
    this.overview = null;
    this.#receivedAt = 0;
    this.#enter("connecting");
  }

  /** Seconds since the last numbers came; null: none came yet. */
  get age() {
    return this.#receivedAt ? (Date.now() - this.#receivedAt) / 1000 : null;
  }

  /** Ask now, for example after a change. */
  async refresh() {
    try {
      this.#receive(await get("overview"), this.#source ? this.state : "polling");
    } catch (error) {
      if (!(error instanceof Unreachable) && !error.status) throw error;
    }
  }

  #onVisibility = () => {
    if (document.hidden) {
      this.#hangUp();
      this.#enter("paused");
    } else if (this.state === "paused") {
      this.#begunAt = Date.now();
      this.#enter("connecting");
      this.#listen();
    }
  };

  #listen() {
    this.#isPolling = false;
    this.#source = new EventSource(address("live"));
    this.#source.addEventListener("overview", (event) => this.#receive(JSON.parse(event.data), "live"));
    this.#source.addEventListener("error", () => this.#poll());
  }

  #hangUp() {
    this.#source?.close();
    this.#source = null;
    this.#isPolling = false;
  }

  #poll() {
    this.#hangUp();
    this.#isPolling = true;
    this.#pollAt = 0;
    this.#retryAt = Date.now() + RETRY_MS;
    this.#watch();
  }

  #watch() {
    if (this.state === "paused") return;
    const now = Date.now();
    const silence = now - Math.max(this.#receivedAt, this.#begunAt);
    if (this.#source && silence > SILENCE_MS) this.#poll();
    else if (this.#isPolling && now >= this.#retryAt) this.#listen();
    else if (this.#isPolling && now >= this.#pollAt) {
      this.#pollAt = now + POLL_MS;
      this.refresh();
    }
    if (silence > STALE_MS) this.#enter("stale");
  }

  #receive(overview, state) {
    if (this.state === "paused" || this.#timer === null) return;
    this.overview = overview;
    this.#receivedAt = Date.now();
    this.#enter(this.#isPolling ? "polling" : state);
    this.dispatchEvent(new CustomEvent("overview", { detail: overview }));
  }

  #enter(state) {
    if (state === this.state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}
