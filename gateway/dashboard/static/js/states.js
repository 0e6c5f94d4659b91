// What stands in the place of data while there is none: loading, nothing yet, a failure with a way to try again.

import { fill, h } from "./dom.js";

/** Grey bars where something will be. */
export function loading(label = "Loading") {
  return h("div.state.loading", { role: "status", "aria-label": label }, h("span.bone"), h("span.bone"), h("span.bone"));
}

/** Nothing is there, which is no fault: why, and what would bring something. */
export function empty(title, hint, action = null) {
  return h("div.state.empty", h("p.headline", title), hint ? h("p", hint) : null, action);
}

/** It went wrong: in the gateway's own words, with a button to try again. */
export function failure(error, retry = null) {
  const button = retry ? h("button", { type: "button", onclick: retry }, "Try again") : null;
  return h("div.state.failed", { role: "alert" }, h("p.headline", headline(error)), h("p", error.message), button);
}

function headline(error) {
  if (!error.status) return "No answer";
  if (error.status === 503) return "Not now";
  return error.status === 404 ? "Not there" : "This did not work";
}

/**
 * Show what an asynchronous function gives, and what it is until then. What is there already stays while it loads again.
 * @param {HTMLElement} place
 * @param {() => Promise<Node|Node[]>} load
 * @param {{signal?: AbortSignal}} [options]
 * @returns {() => Promise<void>} loads again
 */
export function shows(place, load, { signal } = {}) {
  let turn = 0;
  const again = async () => {
    const mine = ++turn;
    if (!place.firstChild) fill(place, loading());
    place.setAttribute("aria-busy", "true");
    let nodes;
    try {
      nodes = [await load()];
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!error.status && error.constructor === TypeError) console.error(error);
      nodes = [failure(error, again)];
    }
    if (mine !== turn || signal?.aborted) return;
    place.removeAttribute("aria-busy");
    fill(place, nodes);
  };
  again();
  return again;
}
