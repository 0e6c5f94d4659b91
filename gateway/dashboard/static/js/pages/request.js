// One request: what the log says, where its time went, why not more was cached, its blocks, what the rules changed.

import { get } from "../api.js";
import { BlockStrip } from "../block_strip.js";
import { contextEdits } from "../context_edits.js";
import { h } from "../dom.js";
import { explanation } from "../explanation.js";
import { requestFacts } from "../request_facts.js";
import { empty, shows } from "../states.js";
import { storedContent } from "../stored_content.js";
import { tenantNames } from "../tenant_names.js";
import { diffView } from "../text_diff.js";
import { timeline } from "../timeline.js";

export const title = (params) => `Request ${idOf(params)}`;

const NOT_FOUND = 404;
const idOf = (params) => params.join("/");

export function open(root, ctx) {
  const id = idOf(ctx.params);
  root.append(h("div.title", h("h1.request-title", "Request ", h("span.code", id)), h("a", { href: "#/requests" }, "All requests")));
  new RequestView(id, ctx).build(root);
}

class RequestView {
  #ask;
  #ctx;
  #strip = new BlockStrip();
  #asked = null;
  #isLogged = false;
  #blockStatus = null;
  #isExplained = false;

  constructor(id, ctx) {
    this.#ctx = ctx;
    this.#ask = (part = "") => get(`requests/${encodeURIComponent(id)}${part}`, { signal: ctx.signal });
  }

  build(root) {
    const log = this.#part(root, "What came, and how it ended", () => this.#log());
    const why = this.#part(root, "Why not more of it was cached", () => this.#why());
    const blocks = this.#part(root, "Its blocks", () => this.#blocks());
    const changes = this.#part(root, "What the rules changed", () => this.#changes());
    this.#ctx.onLive(() => {
      if (!this.#isRunning) return;
      if (this.#blockStatus !== "waiting" && !this.#isExplained) why();
      if (this.#blockStatus === "ended") {
        log();
        changes();
      }
      blocks();
    });
  }

  /** The engine has it, and the log has no line of it yet. */
  get #isRunning() {
    return this.#blockStatus !== null && !(this.#blockStatus === "ended" && this.#isLogged);
  }

  #part(root, name, load) {
    const place = h("div.part");
    root.append(h("section.card", { "aria-label": name }, h("header", h("h2", name)), place));
    return shows(place, load, this.#ctx);
  }

  async #log() {
    const [request, names] = await Promise.all([this.#row(), tenantNames(this.#ctx)]);
    this.#isLogged = request !== null;
    if (!request) return empty("Not in the log", "A request gets its line when it has ended, and lines are kept for --request-log-days at most.");
    return [requestFacts(request, names), contextEdits(request.context_management), h("h3", "Where its time went"), timeline(request), h("h3", "Stored content"), storedContent(request)];
  }

  /** Its line of the log, asked for once by all parts and again until it is there; null: not yet, or no longer. */
  async #row() {
    this.#asked ??= this.#found(this.#ask());
    const asked = this.#asked;
    const request = await asked.catch((error) => {
      this.#asked = null;
      throw error;
    });
    if (request === null && this.#asked === asked) this.#asked = null;
    return request;
  }

  /** Whether the engine may know it: where it never had it, asking would only make the browser print errors. */
  async #wasAdmitted() {
    const request = await this.#row();
    return request === null || request.num_prompt_tokens !== null;
  }

  async #why() {
    const report = (await this.#wasAdmitted()) ? await this.#found(this.#ask("/explain")) : null;
    this.#isExplained = report !== null;
    return report ? explanation(report) : empty("No explanation any more", "The engine explains its last 4,096 requests, until its process ends; this one is older, came before a restart, or was never admitted.");
  }

  async #blocks() {
    const answer = (await this.#wasAdmitted()) ? await this.#found(this.#ask("/blocks")) : null;
    this.#blockStatus = answer?.status ?? null;
    if (answer) return this.#strip.update(answer);
    if (this.#ctx.live.overview?.mode === "upstream") return empty("No blocks here", "The provider computes, and shows no blocks of its cache.");
    return empty("No block table any more", "The engine keeps the tables of the last 256 requests, until its process ends; this one is older, came before a restart, or was never admitted.");
  }

  async #changes() {
    const request = await this.#row();
    if (request && !("request_body" in request)) return empty("Nothing to compare", "Bodies are stored of requests that were let in, where the gateway was started with --store-content.");
    let answer;
    try {
      answer = await this.#ask("/changes");
    } catch (error) {
      if (error.status !== NOT_FOUND) throw error;
      return empty("Nothing to compare", error.message);
    }
    const { rules, diff } = answer;
    if (!diff) return empty("Nothing was changed", `By the rules that are in force now, the conversation came in canonical form.${request?.context_management?.applied_edits.length ? " What the context policy did to it stands above." : ""}`);
    return [h("p", "From the form in which it came to the canonical one, by the rules that are in force now: ", rules.map((rule, index) => [index ? ", " : "", h("code", rule)]), "."), diffView(diff)];
  }

  async #found(answer) {
    try {
      return await answer;
    } catch (error) {
      if (error.status === NOT_FOUND) return null;
      throw error;
    }
  }
}
