// Turning a rule of the normalizer on for everybody, after asking.

import { announce } from "./dom.js";
import { get, send } from "./api.js";
import { confirm } from "./dialog.js";

/** Ask, turn it on and tell whether that was done. What was chosen of its parameters stays. */
export function turnOn(name) {
  return confirm({
    title: `Turn ${name} on for everybody?`,
    text: "From the next request on it changes prompts before they are computed, for every tenant and endpoint for which nothing else was chosen. It can be taken back in the same way.",
    action: "Turn on for everybody",
    run: async () => {
      const { data } = await get("rules");
      const { params } = data.find((rule) => rule.name === name) ?? {};
      await send("PUT", `rules/${encodeURIComponent(name)}`, { mode: "on", params: params ?? {} });
      announce(`${name} is on`);
    },
  });
}

/** The mode of a rule for a tenant and an endpoint, all choices taken together. */
export async function modeFor(name, { tenant, route }) {
  const { data } = await get("rules", { query: { tenant, route } });
  return data.find((rule) => rule.name === name)?.mode ?? null;
}
