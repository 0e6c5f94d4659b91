// The end of the bar: how fresh the numbers are, colours, log out.

import { fill, h } from "./dom.js";
import { seconds } from "./format.js";
import { themeButton } from "./theme.js";

const WORDS = { connecting: "Connecting", live: "Live", polling: "Every 5 s", stale: "Stale", paused: "Paused" };

/** @param {import("./live.js").Live|null} live  null: nobody is logged in */
export function status(live, { leave }) {
  const parts = [themeButton()];
  if (live) {
    parts.unshift(freshness(live));
    parts.push(h("button.quiet", { type: "button", id: "leave", onclick: leave }, "Log out"));
  }
  return parts;
}

function freshness(live) {
  const badge = h("span.freshness", { id: "freshness" });
  const show = () => {
    badge.dataset.state = live.state;
    document.body.classList.toggle("is-stale", live.state === "stale");
    const age = live.age;
    const isOld = live.state === "stale" && age !== null;
    fill(badge, h("span.dot", { "aria-hidden": "true" }), isOld ? `Stale, ${seconds(Math.floor(age))} old` : WORDS[live.state]);
    badge.title = age === null ? "no numbers yet" : `numbers of ${seconds(Math.floor(age))} ago`;
  };
  live.addEventListener("state", show);
  live.addEventListener("overview", show);
  const timer = setInterval(() => (badge.isConnected ? show() : clearInterval(timer)), 5_000);
  show();
  return badge;
}
